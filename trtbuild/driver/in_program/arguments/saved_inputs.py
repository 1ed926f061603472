"""Check the inputs that a program gives to `trtbuild.save`: the module must have been compiled for them.

A file has the inputs and the ranges of its engines, so `save` needs no inputs. Torch-TensorRT's `save` takes them, because
it traces the module again.

Rules
1. Inputs have the number, the names (of keyword inputs), the dtypes and the ranks of the module's inputs.
2. A static shape, or a tensor, is an example: one of the module's profiles has to accept it.
3. An `Input` with a range, or a Dim of `dynamic_shapes`, has the min and the max of the compiled range. With
   `dynamic_shapes`, an axis without a Dim is static.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.core.model.spec import Input, Profile, ShapeRange
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.in_program.arguments.described import Described
from trtbuild.driver.in_program.arguments.export_dims import with_dims
from trtbuild.driver.in_program.arguments.inputs import describe
from trtbuild.errors import UsageError

_HINT = (
    "leave the inputs out: a file has those that the module was compiled for; or compile the module for these inputs"
)
_DIMS_HINT = "leave dynamic_shapes out: a file has the compiled ranges; or compile the module for these ranges"


def refuse_other_inputs(index: PackageIndex, inputs: Any, kwarg_inputs: Any, dynamic_shapes: Any) -> None:
    """Raise UsageError if the given inputs are not those that a module was compiled for. None is not checked."""
    positional = [entry for entry in index.inputs if not entry.keyword]
    if inputs is not None or kwarg_inputs:
        described = describe(inputs, kwarg_inputs, arguments=[entry.name for entry in positional])
        _check(index, described, _pairs(index, described, inputs is not None))
    if dynamic_shapes is not None:
        _check_dims(index, with_dims(_examples(index), dynamic_shapes))


def _pairs(index: PackageIndex, described: Described, has_positional: bool) -> list[tuple[int, int]]:
    """Return the number of each described input, and the number of the same input of the module."""
    named = {entry.name: number for number, entry in enumerate(index.inputs) if entry.keyword}
    by_position = [number for number, entry in enumerate(index.inputs) if not entry.keyword]
    positional = [number for number, entry in enumerate(described.inputs) if not entry.keyword]
    if has_positional and len(positional) != len(by_position):
        raise UsageError(
            f"{len(positional)} positional inputs are given, and the module was compiled for {len(by_position)}",
            hint=_HINT,
        )
    pairs = list(zip(positional, by_position, strict=False))
    for number, entry in enumerate(described.inputs):
        if entry.keyword:
            if entry.name not in named:
                raise UsageError(
                    f"kwarg_inputs has {entry.name!r}, and the module was compiled for {_listed(list(named))}",
                    hint=_HINT,
                )
            pairs.append((number, named[entry.name]))
    return pairs


def _check(index: PackageIndex, described: Described, pairs: Sequence[tuple[int, int]]) -> None:
    for number, packed_number in pairs:
        entry, packed = described.inputs[number], index.inputs[packed_number]
        for profile in described.profiles:
            shape = profile.shapes[number][1]
            if entry.dtype != packed.dtype or len(shape.opt) != len(packed.shape):
                raise UsageError(
                    f"input {packed.name!r} is {entry.dtype} with {len(shape.opt)} axes, and the module was compiled for "
                    f"{packed.dtype} with {len(packed.shape)}",
                    hint=_HINT,
                )
    for profile in described.profiles:
        shapes = {packed_number: profile.shapes[number][1] for number, packed_number in pairs}
        if not _fits_any(shapes, index):
            alone = [number for number, shape in shapes.items() if not _fits_any({number: shape}, index)]
            number = alone[0] if alone else next(iter(shapes))
            raise _misfit(index, number, shapes[number])


def _fits_any(shapes: dict[int, ShapeRange], index: PackageIndex) -> bool:
    return any(_fits(shapes, profile.shapes) for profile in index.profiles)


def _fits(shapes: dict[int, ShapeRange], compiled_shapes: Sequence[ShapeRange]) -> bool:
    """Whether a profile accepts examples, and has the ranges of the inputs that are ranges."""
    for number, shape in shapes.items():
        compiled = compiled_shapes[number]
        if shape.min == shape.max:
            inside = all(
                low <= size <= high for low, size, high in zip(compiled.min, shape.opt, compiled.max, strict=True)
            )
            if not inside:
                return False
        elif (shape.min, shape.max) != (compiled.min, compiled.max):
            return False
    return True


def _misfit(index: PackageIndex, number: int, shape: ShapeRange) -> UsageError:
    compiled = " or ".join(_range(profile.shapes[number]) for profile in index.profiles)
    return UsageError(
        f"input {index.inputs[number].name!r} is {_range(shape)}, and the module was compiled for {compiled}",
        hint=_HINT,
    )


def _range(shape: ShapeRange) -> str:
    return f"{list(shape.min)} to {list(shape.max)}" if shape.min != shape.max else str(list(shape.min))


def _examples(index: PackageIndex) -> Described:
    """Return the module's inputs with static shapes."""
    inputs = tuple(Input(entry.name, entry.dtype, entry.keyword) for entry in index.inputs)
    shapes = index.profiles[0].shapes
    static = tuple((entry.name, ShapeRange(s.opt, s.opt, s.opt)) for entry, s in zip(inputs, shapes, strict=True))
    return Described(inputs, (Profile("0", static),))


def _check_dims(index: PackageIndex, described: Described) -> None:
    """Raise UsageError if the Dims are not the ranges of the module (rule 3)."""
    (profile,) = described.profiles
    for number, (name, shape) in enumerate(profile.shapes):
        for axis, (low, high) in enumerate(zip(shape.min, shape.max, strict=True)):
            compiled = [each.shapes[number] for each in index.profiles]
            least = min(each.min[axis] for each in compiled)
            most = max(each.max[axis] for each in compiled)
            if low == high and least == most:  # an axis without a Dim
                continue
            if (max(low, 1), high) != (max(least, 1), most):
                given_range = f"{low} to {high}" if low != high else "static"
                own_range = f"{least} to {most}" if least != most else f"{least} alone"
                raise UsageError(
                    f"in dynamic_shapes {name}.{axis} is {given_range}, and the module was compiled for {own_range}",
                    hint=_DIMS_HINT,
                )


def _listed(names: Sequence[str]) -> str:
    return f"the keyword inputs {', '.join(names)}" if names else "no keyword input"
