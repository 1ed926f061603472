"""Convert the recipe of an engine step to the trtexec command that builds the same engine.

Sources of the flags:
* for TensorRT, ``samples/common/sampleOptions.cpp`` of NVIDIA/TensorRT. TensorRT 11 has removed some flags (migration
  guide 10.x to 11.x, "trtexec")
* for TensorRT-RTX, the tool ``tensorrt_rtx`` (guide, "Using tensorrt_rtx")
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings, MemoryPool, Setting, TacticSources
from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.inspection.documents import TrtexecCommand
from trtbuild.toolchain.libraries.releases import release, version_numbers

#: The flags of these settings come before those of the other settings, which follow in the order of `SETTINGS`.
_FIRST_SETTINGS = (
    "optimization_level", "workspace", "avg_timing_iterations", "profiling_verbosity", "tf32", "sparse_weights",
    "tiling_optimization_level",
)  # fmt: skip
_SETTING_TYPES = get_type_hints(BuilderSettings)
_POOL_FLAG = "--memPoolSize="
_COMPATIBILITY_LEVELS = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
_IO_TYPES = {"float32": "fp32", "float16": "fp16", "int32": "int32", "bool": "bool"}


def trtexec_command(recipe: Recipe, partition: Partition, sms: Sequence[int], onnx: str, plan: str) -> TrtexecCommand:
    """Return the command for the engine step with this recipe.

    `sms` are the SMs (numbers of GPU architectures) of the target. The command reads the file `onnx` and writes `plan`.
    """
    parts: dict[str, Any] = dict(recipe.parts)
    settings, target = dict(parts["settings"]), dict(parts["target"])
    toolchain, version = parts["toolchain"]
    arguments = [f"--onnx={onnx}", f"--saveEngine={plan}", "--skipInference"]
    differs: list[str] = []
    arguments += _profile_flags(parts["profiles"], partition, toolchain, version, differs)
    arguments += _setting_flags(settings, toolchain, version)
    arguments += _type_flags(partition, toolchain, version, differs)
    if toolchain == "tensorrt-rtx":
        arguments.append(f"--computeCapabilities={','.join(map(str, sms))}")
    elif target["compatibility"] in _COMPATIBILITY_LEVELS:
        arguments.append(f"--hardwareCompatibilityLevel={_COMPATIBILITY_LEVELS[target['compatibility']]}")
    differs += [
        f"the tool has no flag for builder.{name}"
        for name in _passed_settings(settings)
        if SETTINGS[name].trtexec is None
    ]
    tool = "tensorrt_rtx" if toolchain == "tensorrt-rtx" else "trtexec"
    return TrtexecCommand(tool=tool, arguments=arguments, differs=differs, text=shlex.join([tool, *arguments]))


def _profile_flags(
    profiles: Mapping[str, Any], partition: Partition, toolchain: str, version: str, differs: list[str]
) -> Iterator[str]:
    """Yield the flags of the optimization profiles. trtexec takes shapes only for dynamic inputs."""
    dynamic_inputs = [
        f"i{number}"
        for number, (_, type_) in enumerate(partition.inputs)
        if any(not isinstance(size, int) for size in type_.shape)
    ]
    if not dynamic_inputs:
        return
    if len(profiles) > 1 and toolchain == "tensorrt" and version_numbers(version) < (10,):
        differs.append(f"trtexec takes one optimization profile before TensorRT 10, and the engine has {len(profiles)}")
        profiles = {"0": profiles["0"]}
    for number, profile in sorted(profiles.items(), key=lambda entry: int(entry[0])):
        if len(profiles) > 1:
            yield f"--profile={number}"
        for kind in ("min", "opt", "max"):
            shapes = ",".join(f"{name}:{_shape_text(profile[name][kind])}" for name in dynamic_inputs)
            yield f"--{kind}Shapes={shapes}"


def _shape_text(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _setting_flags(settings: Mapping[str, Any], toolchain: ToolchainName, version: str) -> list[str]:
    arguments: list[str] = []
    for name, value in _passed_settings(settings).items():
        template = SETTINGS[name].trtexec
        if template is None:
            continue
        choices = get_args(_SETTING_TYPES[name])
        number = choices.index(value) if value in choices else None  # some flags take the position of the choice
        argument = template.format(_formatted_value(SETTINGS[name], value, toolchain, version), number=number)
        pool_position = next(
            (position for position, earlier in enumerate(arguments) if earlier.startswith(_POOL_FLAG)), None
        )
        if argument.startswith(_POOL_FLAG) and pool_position is not None:  # trtexec uses only one of these flags
            arguments[pool_position] += "," + argument.removeprefix(_POOL_FLAG)
        else:
            arguments.append(argument)
    return arguments


def _passed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their default, and those that always need a flag, in the order of the flags."""
    default = vars(BuilderSettings())
    values = {name: settings.get(name, default[name]) for name in (*_FIRST_SETTINGS, *SETTINGS)}
    return {
        name: value for name, value in values.items() if value != default[name] or SETTINGS[name].trtexec_at_default
    }


def _formatted_value(setting: Setting, value: Any, toolchain: ToolchainName, version: str) -> str:
    """Return the value as trtexec reads it. The size of a memory pool has a unit, because the default is MiB."""
    match setting.config_part:
        case MemoryPool():
            return _size_text(value)
        case TacticSources():
            known = release(toolchain, version).tactic_sources
            return ",".join(f"{'+' if source in value else '-'}{source.upper()}" for source in known)
        case _:
            return str(value)


def _size_text(size: int) -> str:
    for suffix, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return f"{size}B"


def _type_flags(partition: Partition, toolchain: str, version: str, differs: list[str]) -> Iterator[str]:
    """Yield the flag of strong typing, unless the tool always types strongly.

    If the release has no strong typing, and an input or output is float16, yield flags with the types of all inputs and
    outputs.
    """
    if toolchain == "tensorrt-rtx" or version_numbers(version) >= (11,):
        return  # always strongly typed
    if release("tensorrt", version).strongly_typed:
        yield "--stronglyTyped"
        return
    inputs, outputs = [type_ for _, type_ in partition.inputs], partition.outputs
    if any(type_.dtype == "float16" for type_ in (*inputs, *outputs)):
        for flag, types in (("--inputIOFormats", inputs), ("--outputIOFormats", outputs)):
            yield f"{flag}={','.join(_IO_TYPES.get(type_.dtype, type_.dtype) + ':chw' for type_ in types)}"
    differs.append("where the graph has float16 values, trtbuild also sets the precision of each layer")
