"""Check that the fields of one model do not contradict each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trtbuild.core.model.spec import Origin, Source, Target
from trtbuild.manifest.declared import INVALID, LocatedValue
from trtbuild.manifest.format.fields import PrecisionFields
from trtbuild.manifest.outputs import OutputPath
from trtbuild.manifest.source import kinds_of_source
from trtbuild.manifest.yaml_text.problems import Problems

#: Fields that have an effect only if the lower step changes the graph (`GraphKind.is_lowered`), as it does for PyTorch
#: models. Each row has the field, the value that other models must have, the effect, and advice for other models.
_ONLY_FOR_LOWERED_GRAPHS: tuple[tuple[str, object, str, str], ...] = (
    ("precision", "float32", "`precision` rewrites a PyTorch model", "create the model with that type"),
    ("weights", None, "`weights` are bound to a PyTorch model", "the model has its weights with it"),
    ("state", [], "`state` names buffers of a PyTorch model", "pass the state as an input, and return it"),
    ("partition.granularity", ["model"], "`granularity` cuts a PyTorch model", "the model is one engine"),
    (
        "partition.truncate_double",
        False,
        "`truncate_double` rewrites a PyTorch model",
        "make the model in float32 instead",
    ),
    ("partition.torch_executed_ops", [], "`torch_executed_ops` stay in PyTorch", "the model is one engine"),
)
#: Fields that have an effect only if a library can run the graph without TensorRT (`GraphKind.reference`).
_ONLY_FOR_GRAPHS_WITH_A_REFERENCE: tuple[tuple[str, object, str, str], ...] = (
    ("reference", False, "a package's `reference` runs on a CPU", "only TensorRT runs a network"),
)

#: Kind of output that cannot keep a model's state → the reason.
_STATELESS_OUTPUTS = {
    "pt2": "a program of torch.export that calls engines keeps nothing between calls",
    "triton": "a Triton server may run calls of different clients in one instance",
}

#: The precision of a model without the field `precision`.
_FLOAT32 = PrecisionFields.model_validate("float32")


def check_graph(fields: Mapping[str, LocatedValue], model: str, source: Source, problems: Problems) -> None:
    """Add a problem for each field that has no effect on the graph of `source`. `model` is the model's name."""
    source_text = f"model {model!r} comes from `{source.kind}`"
    restrictions = () if source.graph.is_lowered else _ONLY_FOR_LOWERED_GRAPHS
    if source.graph.reference is None:
        restrictions += _ONLY_FOR_GRAPHS_WITH_A_REFERENCE
    for field, allowed, text, reason in restrictions:
        located = fields.get(field)
        if located is not None and located.value is not INVALID and located.value not in (allowed, _FLOAT32):
            name = field.rpartition(".")[2]
            allowed_text = "model" if name == "granularity" else json.dumps(allowed).strip('"')
            hint = f"{reason}: write `{name}: {allowed_text}` in it"
            problems.add(located.name_origin, f"{text}, and {source_text}", hint)


def check_state(model: str, outputs: Sequence[OutputPath], problems: Problems) -> None:
    """Add a problem for each output that cannot keep the state of the model between calls."""
    for output in outputs:
        if output.kind in _STATELESS_OUTPUTS:
            problems.add(
                output.origin,
                f"model {model!r} has `state`, and {_STATELESS_OUTPUTS[output.kind]}",
                "write a package, or pass the state as an input and return it",
            )


def check_plugins(model: str, outputs: Sequence[OutputPath], problems: Problems) -> None:
    """Add a problem for the ``.pt2`` output of a model with plugins, because a ``.pt2`` file cannot load them."""
    for output in outputs:
        if output.kind == "pt2":
            problems.add(
                output.origin,
                f"model {model!r} has `plugins`, and a program of torch.export loads no library of plugins",
                "write a package",
            )


def needs_float16(toolchain: str, sm: int) -> bool:
    """Whether a model must have the precision float16: TensorRT-RTX has no float32 matrix products on Turing."""
    return toolchain == "tensorrt-rtx" and sm == 75


def check_turing(
    fields: Mapping[str, LocatedValue], model: str, target: Target, use_origin: Origin, problems: Problems
) -> None:
    """Add a problem for a float32 model that TensorRT-RTX would compile for a Turing GPU.

    TensorRT-RTX 1.7 also rejects it, but only after the trace and the conversion. `use_origin` is the place where the
    model names the target."""
    source = fields.get("source")
    declared = [] if source is None or source.value is INVALID else kinds_of_source(source.value)
    if not all(kind.graph.is_lowered for kind in declared):  # `precision` sets the types of lowered graphs only
        return
    located = fields.get("precision")
    is_float32 = located is None or located.value == _FLOAT32
    if is_float32 and needs_float16(target.toolchain, target.sm):
        problems.add(
            located.node.origin if located else use_origin,
            f"model {model!r} has precision float32, and TensorRT-RTX has no float32 matrix products on Turing "
            f"(target {target.name!r}, SM 75: FP32 GEMM is not supported)",
            "write `precision: float16`, or leave the target out",
        )
