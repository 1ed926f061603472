"""Check the inputs that a program gives to `trtbuild.save`: the module must have been compiled for them.

`save` needs no inputs, because the module was traced when it was compiled. Torch-TensorRT's `save` takes inputs, because it
traces the module again.

Rules
1. Given inputs must have the dtypes and ranks of the module's inputs. Keyword inputs are matched by name, and may be left
   out. Positional inputs are given either all or not at all.
2. `inputs` and `kwarg_inputs` have one or more profiles. For each of them, one profile of the module has to fit all inputs.
   An input with a static shape, such as a tensor, fits if its sizes are inside the ranges of the module's profile.
3. An input with ranges fits only if the module's profile has the same ranges. The range of a Dim of `dynamic_shapes` must
   go from the smallest min to the largest max of all profiles. With `dynamic_shapes`, an axis without a Dim is static.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from trtbuild.core.model.spec import Input, Profile, ShapeRange
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.export_dims import apply_export_dims
from trtbuild.driver.in_program.arguments.inputs import describe_inputs
from trtbuild.errors import UsageError

_HINT = (
    "leave the inputs out: a file has those that the module was compiled for; or compile the module for these inputs"
)
_DIMS_HINT = "leave dynamic_shapes out: a file has the compiled ranges; or compile the module for these ranges"


def refuse_other_inputs(index: PackageIndex, inputs: Any, kwarg_inputs: Any, dynamic_shapes: Any) -> None:
    """Raise UsageError if the module of a package was not compiled for the given inputs.

    An argument that is None is not checked.
    """
    positional = [entry for entry in index.inputs if not entry.keyword]
    if inputs is not None or kwarg_inputs:
        given_inputs = describe_inputs(inputs, kwarg_inputs, arguments=[entry.name for entry in positional])
        _check_inputs(index, given_inputs, _number_pairs(index, given_inputs, inputs is not None))
    if dynamic_shapes is not None:
        _check_dims(index, apply_export_dims(_examples(index), dynamic_shapes))


def _number_pairs(index: PackageIndex, given_inputs: ModuleInputs, has_positional: bool) -> list[tuple[int, int]]:
    """Return (number among the given inputs, number among the module's inputs) for each given input."""
    number_by_name = {entry.name: number for number, entry in enumerate(index.inputs) if entry.keyword}
    compiled_positional = [number for number, entry in enumerate(index.inputs) if not entry.keyword]
    positional = [number for number, entry in enumerate(given_inputs.inputs) if not entry.keyword]
    if has_positional and len(positional) != len(compiled_positional):
        raise UsageError(
            f"{len(positional)} positional inputs are given, and the module was compiled for {len(compiled_positional)}",
            hint=_HINT,
        )
    pairs = list(zip(positional, compiled_positional, strict=False))
    for number, entry in enumerate(given_inputs.inputs):
        if entry.keyword:
            if entry.name not in number_by_name:
                raise UsageError(
                    f"kwarg_inputs has {entry.name!r}, and the module was compiled for {_keyword_text(number_by_name)}",
                    hint=_HINT,
                )
            pairs.append((number, number_by_name[entry.name]))
    return pairs


def _check_inputs(index: PackageIndex, given_inputs: ModuleInputs, pairs: Sequence[tuple[int, int]]) -> None:
    for number, compiled_number in pairs:
        entry, compiled = given_inputs.inputs[number], index.inputs[compiled_number]
        for profile in given_inputs.profiles:
            shape = profile.shapes[number][1]
            if entry.dtype != compiled.dtype or len(shape.opt) != len(compiled.shape):
                raise UsageError(
                    f"input {compiled.name!r} is {entry.dtype} with {len(shape.opt)} axes, and the module was compiled for "
                    f"{compiled.dtype} with {len(compiled.shape)}",
                    hint=_HINT,
                )
    for profile in given_inputs.profiles:
        shapes = {compiled_number: profile.shapes[number][1] for number, compiled_number in pairs}
        if not _fits_any(shapes, index):
            misfits = [number for number, shape in shapes.items() if not _fits_any({number: shape}, index)]
            number = misfits[0] if misfits else next(iter(shapes))
            raise _misfit_error(index, number, shapes[number])


def _fits_any(shapes: dict[int, ShapeRange], index: PackageIndex) -> bool:
    return any(_fits(shapes, profile.shapes) for profile in index.profiles)


def _fits(shapes: dict[int, ShapeRange], compiled_shapes: Sequence[ShapeRange]) -> bool:
    """Whether a profile accepts the static shapes (rule 2), and has the same ranges as the dynamic shapes (rule 3).

    `shapes`: number of an input → given shape.
    """
    for number, shape in shapes.items():
        compiled = compiled_shapes[number]
        if shape.min == shape.max:
            is_inside = all(
                low <= size <= high for low, size, high in zip(compiled.min, shape.opt, compiled.max, strict=True)
            )
            if not is_inside:
                return False
        elif (shape.min, shape.max) != (compiled.min, compiled.max):
            return False
    return True


def _misfit_error(index: PackageIndex, number: int, shape: ShapeRange) -> UsageError:
    compiled = " or ".join(_range_text(profile.shapes[number]) for profile in index.profiles)
    return UsageError(
        f"input {index.inputs[number].name!r} is {_range_text(shape)}, and the module was compiled for {compiled}",
        hint=_HINT,
    )


def _range_text(shape: ShapeRange) -> str:
    return f"{list(shape.min)} to {list(shape.max)}" if shape.min != shape.max else str(list(shape.min))


def _examples(index: PackageIndex) -> ModuleInputs:
    """Return the module's inputs with the opt shapes of its first profile as static shapes."""
    inputs = tuple(Input(entry.name, entry.dtype, entry.keyword) for entry in index.inputs)
    shapes = index.profiles[0].shapes
    static = tuple(
        (entry.name, ShapeRange(shape.opt, shape.opt, shape.opt)) for entry, shape in zip(inputs, shapes, strict=True)
    )
    return ModuleInputs(inputs, (Profile("0", static),))


def _check_dims(index: PackageIndex, given_inputs: ModuleInputs) -> None:
    """Check rule 3 for Dims."""
    (profile,) = given_inputs.profiles
    for number, (name, shape) in enumerate(profile.shapes):
        for axis, (low, high) in enumerate(zip(shape.min, shape.max, strict=True)):
            compiled_shapes = [each.shapes[number] for each in index.profiles]
            lowest = min(each.min[axis] for each in compiled_shapes)
            highest = max(each.max[axis] for each in compiled_shapes)
            if low == high and lowest == highest:  # an axis without a Dim
                continue
            if (max(low, 1), high) != (max(lowest, 1), highest):  # a Dim without a min begins at 0
                given_range = f"{low} to {high}" if low != high else "static"
                compiled_range = f"{lowest} to {highest}" if lowest != highest else f"{lowest} alone"
                raise UsageError(
                    f"in dynamic_shapes {name}.{axis} is {given_range}, and the module was compiled for {compiled_range}",
                    hint=_DIMS_HINT,
                )


def _keyword_text(names: Collection[str]) -> str:
    return f"the keyword inputs {', '.join(names)}" if names else "no keyword input"
