"""Check a model's field ``quantize:``."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.core.model.quantization import FORMATS, Calibration, Quantization
from trtbuild.core.model.quantized_types import unsupported_reason
from trtbuild.core.model.source_kinds import KINDS_WITH_LAYERS
from trtbuild.core.model.spec import Origin, Source, Target
from trtbuild.manifest.declared import LocatedValue
from trtbuild.manifest.format.fields import CalibrationFields, QuantizeFields
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node


def resolve_quantization(
    located: LocatedValue, model: str, source: Source | None, paths: ProjectPaths, problems: Problems
) -> Quantization | None:
    """The quantization that a model declares. If it is invalid, returns None and adds its problems."""
    declared: QuantizeFields = located.value
    node, problems_before = located.node, len(problems)
    if source is not None and source.kind not in KINDS_WITH_LAYERS:
        names = " or ".join(f"`{name}:`" for name in KINDS_WITH_LAYERS)
        problems.add(
            located.name_origin,
            f"`quantize` needs the layers of a PyTorch module, and model {model!r} comes from `{source.kind}`",
            f"use a {names} source, or a model that is quantized already",
        )
    methods = FORMATS[declared.format].methods
    if declared.method not in methods:
        problems.add(
            _place(node, "method"),
            f"the format {declared.format} has no method {declared.method!r}",
            f"write one of {', '.join(methods)}",
        )
        return None
    result = Quantization(declared.format, declared.method, None, tuple(declared.exclude or ()))
    if declared.calibration is None:
        if result.needs_data:
            problems.add(
                located.name_origin,
                f"the format {declared.format} with the method {declared.method} needs calibration data, "
                f"but model {model!r} has no `calibration`",
                'write `calibration: {python: "module:callable"}`, or use a format for weights only',
            )
    elif not result.needs_data:
        problems.add(
            _place(node, "calibration"),
            f"the format {declared.format} with the method {declared.method} uses no calibration data",
            "remove `calibration`",
        )
    else:
        calibration = _calibration(declared.calibration, node.items["calibration"], paths, problems)
        result = Quantization(declared.format, declared.method, calibration, result.exclude)
    return result if len(problems) == problems_before else None


def check_targets(
    quantization: Quantization, targets: Sequence[Target], model: str, origin: Origin, problems: Problems
) -> None:
    """Add a problem for each target whose toolchain or GPU lacks an element type of the format."""
    for target in targets:
        reasons = _missing_types(quantization.format, target)
        if reasons:
            fitting = [name for name in FORMATS if not _missing_types(name, target)]
            problems.add(
                origin,
                f"model {model!r} has the format {quantization.format} and the target {target.name!r}: {reasons[0]}",
                f"write one of {', '.join(fitting)}, or leave the target out",
            )


def _missing_types(name: str, target: Target) -> list[str]:
    """A text for each element type that the format `name` needs and the target lacks: the type, then the reason."""
    reasons = {
        type_: unsupported_reason(type_, target.toolchain, target.version, target.sm) for type_ in FORMATS[name].types
    }
    return [f"{type_} {reason}" for type_, reason in reasons.items() if reason is not None]


def _calibration(declared: CalibrationFields, node: Node, paths: ProjectPaths, problems: Problems) -> Calibration:
    file = declared.safetensors
    if file is not None:
        file = paths.name_of(file, folder_of(node.file))
        check_readable(paths, file, "the file of calibration data", node.items["safetensors"].origin, problems)
    return Calibration(declared.python, file, declared.kwargs or {}, declared.samples)


def _place(node: Node, field: str) -> Origin:
    return node.keys.get(field, node.origin)
