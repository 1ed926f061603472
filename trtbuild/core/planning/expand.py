"""Derives engine jobs from partitions. Once a model's partitions are known, its plan is complete."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.core.engines.engine_job import DeclaredType, EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.shapes import ShapePlan, profile_sizes
from trtbuild.core.model.spec import Model, Profile, ShapeRange, Target
from trtbuild.core.partition.partitions import Partition, TensorType
from trtbuild.core.values.expressions import Expression, Interval, evaluate, interval


def symbol_values(shapes: ShapePlan, sizes: Sequence[int]) -> tuple[int, ...]:
    """The values of the graph's symbols, from the sizes of their dims. A dim with ``multiple_of: k`` is k times its symbol.

    `sizes` has one size for each symbol."""
    return tuple(size // symbol.multiple_of for size, symbol in zip(sizes, shapes.symbols, strict=True))


def input_range(shape: Sequence[Expression], shapes: ShapePlan, profile: Profile) -> ShapeRange:
    """The min, opt and max shape of a tensor inside the model for one profile.

    min and max are bounds of each size for all values of the symbols in the profile. They are not the sizes at the
    profile's min and max, because ``10 - s`` becomes smaller when s becomes larger. opt is the size at the profile's opt.
    Negative results are replaced by 0.
    """
    at_min, at_opt, at_max = (
        symbol_values(shapes, profile_sizes(shapes, profile, which)) for which in ("min", "opt", "max")
    )
    bounds: list[Interval] = list(zip(at_min, at_max, strict=True))
    intervals = [interval(size, bounds) for size in shape]
    return ShapeRange(
        min=tuple(max(0, low) for low, _ in intervals),
        opt=tuple(max(0, evaluate(size, at_opt)) for size in shape),
        max=tuple(max(0, high) for _, high in intervals),
    )


def engine_job(
    model: Model,
    shapes: ShapePlan,
    partition: Partition,
    onnx: str,
    weights: Sequence[Weight],
    settings: BuilderSettings,
    target: Target,
    toolchain_version: str,
) -> EngineJob:
    """The job that compiles `partition` for `target`.

    `weights` are the model's weights by slot (the number of a weight in the traced program). `settings` has all defaults
    filled in."""
    return EngineJob(
        onnx=onnx,
        weights=tuple(weights[slot] for slot in partition.weights),
        profiles=tuple(
            tuple(input_range(tensor_type.shape, shapes, profile) for _, tensor_type in partition.inputs)
            for profile in model.profiles
        ),
        settings=settings,
        target=target,
        toolchain_version=toolchain_version,
        inputs=tuple(_declared_type(tensor_type, shapes) for _, tensor_type in partition.inputs),
        outputs=tuple(_declared_type(tensor_type, shapes) for tensor_type in partition.outputs),
    )


def _declared_type(tensor_type: TensorType, shapes: ShapePlan) -> DeclaredType:
    """The dtype and the sizes of a tensor. A size that may have several values is None."""
    ranges = [(symbol.min // symbol.multiple_of, symbol.max // symbol.multiple_of) for symbol in shapes.symbols]
    ends = [interval(size, ranges) for size in tensor_type.shape]
    return tensor_type.dtype, tuple(low if low == high else None for low, high in ends)
