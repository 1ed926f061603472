"""The trtexec command that builds what an engine step has built, from the step's recipe.

Flags are those of NVIDIA/TensorRT's ``samples/common/sampleOptions.cpp`` (8.6 to 10), without what TensorRT 11 has removed
(migration guide 10.x to 11.x, "trtexec"), and of TensorRT-RTX's ``tensorrt_rtx`` (guide, "Using tensorrt_rtx"). What the
tool has no flag for is said beside the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.toolchain.libraries.releases import numbers_of, release

#: Setting → flag, where it is on.
_SWITCHES = {
    "refit": "--refit",
    "strip_plan": "--stripWeights",
    "weight_streaming": "--allowWeightStreaming",
    "version_compatible": "--versionCompatible",
    "exclude_lean_runtime": "--excludeLeanRuntime",
    "direct_io": "--directIO",
    "monitor_memory": "--monitorMemory",
}
#: Setting → flag with a value, where it is set.
_VALUES = {
    "max_aux_streams": "--maxAuxStreams",
    "l2_limit_for_tiling": "--l2LimitForTiling",
    "max_num_tactics": "--maxTactics",
}
#: Settings that the tool cannot make.
_WITHOUT = ("strict_nans", "distributive_independence", "require_user_allocation")
_TILING = ("none", "fast", "moderate", "full")
_COMPATIBILITY = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
_FORMATS = {"float32": "fp32", "float16": "fp16", "int32": "int32", "bool": "bool"}


@dataclass(frozen=True)
class Command:
    """A tool and its arguments; `differs` says what the engine has and the command cannot."""

    tool: str
    arguments: tuple[str, ...]
    differs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "arguments": list(self.arguments), "differs": list(self.differs)}

    def __str__(self) -> str:
        return shlex.join([self.tool, *self.arguments])


def command(recipe: Recipe, part: Mapping[str, Any], sms: Sequence[int], onnx: str, plan: str) -> Command:
    """The command for an engine step with this recipe. `part` is the partition in the package's index, `sms` what its
    target's plans are for; `onnx` and `plan` are the files to read and to write."""
    parts: dict[str, Any] = dict(recipe.parts)
    settings, target = dict(parts["settings"]), dict(parts["target"])
    toolchain, version = parts["toolchain"]
    arguments = [f"--onnx={onnx}", f"--saveEngine={plan}", "--skipInference"]
    differs: list[str] = []
    arguments += _profiles(parts["profiles"], part, toolchain, version, differs)
    arguments += _settings(settings, toolchain, version)
    arguments += _types(part, toolchain, version, differs)
    if toolchain == "tensorrt-rtx":
        arguments.append(f"--computeCapabilities={','.join(map(str, sms))}")
    elif target["compatibility"] in _COMPATIBILITY:
        arguments.append(f"--hardwareCompatibilityLevel={_COMPATIBILITY[target['compatibility']]}")
    differs += [f"it has no flag for builder.{name}" for name in _WITHOUT if settings.get(name)]
    return Command("tensorrt_rtx" if toolchain == "tensorrt-rtx" else "trtexec", tuple(arguments), tuple(differs))


def _profiles(
    profiles: Mapping[str, Any], part: Mapping[str, Any], toolchain: str, version: str, differs: list[str]
) -> Iterator[str]:
    """Shapes of the inputs that are dynamic; trtexec takes no others."""
    dynamic = [
        f"i{number}"
        for number, (_, type_) in enumerate(part["inputs"])
        if any(not isinstance(size, int) for size in type_["shape"])
    ]
    if not dynamic:
        return
    if len(profiles) > 1 and toolchain == "tensorrt" and numbers_of(version) < (10,):
        differs.append(f"it takes one optimization profile before TensorRT 10, and the engine has {len(profiles)}")
        profiles = {"0": profiles["0"]}
    for number, profile in sorted(profiles.items(), key=lambda entry: int(entry[0])):
        if len(profiles) > 1:
            yield f"--profile={number}"
        for which in ("min", "opt", "max"):
            shapes = ",".join(f"{name}:{_shape(profile[name][which])}" for name in dynamic)
            yield f"--{which}Shapes={shapes}"


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _settings(settings: Mapping[str, Any], toolchain: str, version: str) -> Iterator[str]:
    yield f"--builderOptimizationLevel={settings['optimization_level']}"
    if settings["workspace"] is not None:
        yield f"--memPoolSize=workspace:{_bytes(settings['workspace'])}"
    yield f"--avgTiming={settings['avg_timing_iterations']}"
    yield f"--profilingVerbosity={settings['profiling_verbosity']}"
    if not settings["tf32"]:
        yield "--noTF32"
    if settings["sparse_weights"]:
        yield "--sparsity=enable"
    if settings["tiling_optimization_level"] != "none":
        yield f"--tilingOptimizationLevel={_TILING.index(settings['tiling_optimization_level'])}"
    for name, flag in _VALUES.items():
        if settings[name] is not None:
            yield f"{flag}={settings[name]}"
    for name, flag in _SWITCHES.items():
        if settings[name]:
            yield flag
    chosen = settings.get("tactic_sources")
    if chosen is not None:
        known = release("tensorrt-rtx" if toolchain == "tensorrt-rtx" else "tensorrt", version).tactic_sources
        yield "--tacticSources=" + ",".join(f"{'+' if name in chosen else '-'}{name.upper()}" for name in known)


def _bytes(size: int) -> str:
    for suffix, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return f"{size}B"


def _types(part: Mapping[str, Any], toolchain: str, version: str, differs: list[str]) -> Iterator[str]:
    """Strong typing, or before there was any, the types of inputs and outputs."""
    if toolchain == "tensorrt-rtx" or numbers_of(version) >= (11,):
        return  # always so
    if release("tensorrt", version).strongly_typed:
        yield "--stronglyTyped"
        return
    given, made = [type_ for _, type_ in part["inputs"]], part["outputs"]
    if any(type_["dtype"] == "float16" for type_ in (*given, *made)):
        for flag, types in (("--inputIOFormats", given), ("--outputIOFormats", made)):
            yield f"{flag}={','.join(_FORMATS.get(type_['dtype'], type_['dtype']) + ':chw' for type_ in types)}"
    differs.append("where the graph has float16 values, trtbuild also sets the precision of each layer")
