"""What a program says about precision, partitions and the builder, checked by the rules of a manifest.

Torch-TensorRT's names are taken beside a manifest's (`ALIASES`); any other is an error that lists what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from trtbuild.core.nearest import suggestion
from trtbuild.core.spec import BuilderSettings, PartitionSettings, Precision
from trtbuild.driver.in_program.inputs import dtype_name
from trtbuild.errors import UsageError

#: Torch-TensorRT's name of a builder setting → the manifest's, and its value there.
ALIASES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "workspace_size": ("workspace", lambda size: size or None),  # 0 is "the default" there
    "num_avg_timing_iters": ("avg_timing_iterations", lambda count: count),
    "disable_tf32": ("tf32", lambda off: not off),
    "make_refittable": ("refit", lambda on: on),
    "strip_engine_weights": ("strip_plan", lambda on: on),
    "enable_weight_streaming": ("weight_streaming", lambda on: on),
}

_BUILDER = tuple(entry.name for entry in fields(BuilderSettings))


def precision_of(precision: Any, enabled_precisions: Iterable[Any] | None) -> Precision:
    """The one precision that is meant. Torch-TensorRT's set may have float32 beside it. Raises UsageError."""
    lower = {_dtype(entry) for entry in enabled_precisions or ()} - {"float32"}
    said = _dtype(precision) if precision is not None else None
    found = lower | ({said} if said is not None else set())
    if not found:
        return "float32"
    if len(found) > 1 or not found <= {"float32", "float16", "bfloat16"}:
        raise UsageError(
            f"precision cannot be {' and '.join(sorted(found))}",
            hint='a model computes in one of "float32", "float16" and "bfloat16"',
        )
    return found.pop()  # type: ignore[return-value]


def partition_of(
    torch_executed_ops: Iterable[Any],
    min_block_size: int | None,
    require_full_compilation: bool,
    granularity: Any,
) -> PartitionSettings:
    """How the graph is cut. Raises UsageError."""
    from trtbuild.manifest.fields import PartitionFields

    given: dict[str, Any] = {
        "torch_executed_ops": [_operator(entry) for entry in torch_executed_ops],
        "require_full_compilation": require_full_compilation,
    }
    if min_block_size is not None:
        given["min_block_size"] = min_block_size
    if granularity is not None:
        given["granularity"] = granularity if isinstance(granularity, str) else list(granularity)
    return _settings(PartitionSettings(), PartitionFields, given)  # type: ignore[no-any-return]


def builder_of(given: Mapping[str, Any], others: Iterable[str] = ()) -> BuilderSettings:
    """TensorRT's builder settings, by the manifest's names or Torch-TensorRT's. `others` are what else might be meant by a
    name that is none of these. Raises UsageError."""
    from trtbuild.manifest.fields import BuilderFields

    named: dict[str, Any] = {}
    for name, value in given.items():
        if name in ALIASES:
            own, translate = ALIASES[name]
            value = translate(value)
            if own == "workspace" and value is None:
                continue
            name = own
        if name not in _BUILDER:
            hint = suggestion(name, [*others, *_BUILDER, *ALIASES], "settings")
            raise UsageError(f"there is no setting {name!r}", hint=hint)
        if name == "optimization_level" and value is None:
            continue
        named[name] = value
    return _settings(BuilderSettings(), BuilderFields, named)  # type: ignore[no-any-return]


def _settings(defaults: Any, model: Any, given: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        found = model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part in given)
        hint = first.get("ctx", {}).get("hint")
        raise UsageError(
            f"{place or 'a setting'}: {first['msg']}", hint=hint if isinstance(hint, str) else None
        ) from None
    said = {name: getattr(found, name) for name in found.model_fields_set}
    return replace(defaults, **{name: tuple(v) if isinstance(v, list) else v for name, v in said.items()})


def _dtype(entry: Any) -> str:
    name = str(getattr(entry, "name", entry)) if not isinstance(entry, str) else entry
    short = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return dtype_name(short.get(name, entry if not isinstance(entry, str) else name))


def _operator(entry: Any) -> str:
    """``aten.add.Tensor`` for ``torch.ops.aten.add.Tensor``, itself or in quotes."""
    return str(entry).removeprefix("torch.ops.").replace("::", ".")
