"""The inputs of an ``ExportedProgram``, with the Dims of its export.

Rules
1. Without `inputs`, a dim has the program's range, and its opt size is the size in the program's example. If that size is
   not known, the opt size is the max size. The min size is at least 1, even if the program's range begins at 0.
2. `dims` and `dynamic_shapes` need `inputs`, and `dims` also needs ranges, in `inputs` or in `dynamic_shapes`. If no dims
   are declared, the program's own dims are used.
3. If all `inputs` have static shapes that the program accepts, these shapes are examples: their sizes are the opt sizes.
   Then `dynamic_shapes` must not have a number for an axis that is dynamic in the program. All other `inputs`, such as
   ranges and several profiles, replace the program's ranges.
4. Keyword inputs are sorted into the program's order, so that the same model always has the same key. The package passes
   an input by position or by name as the program does, even if it is given in the other way here.
5. Axes with the same symbol belong to one dim. ``2 * half`` is a separate dim, whose sizes are multiples of 2.

The argument `program_inputs` has a `ProgramInput` for each input of the program. The `shape` of a `ProgramInput` has a
`ProgramAxis` for each dynamic axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import Input as SpecInput
from trtbuild.core.model.spec import NamedDim, Profile, ShapeRange
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.export_dims import static_axes
from trtbuild.driver.in_program.arguments.inputs import describe_inputs
from trtbuild.errors import UsageError


def describe_program(
    exported: Any, inputs: Any, kwarg_inputs: Any, dims: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ModuleInputs:
    """Return the inputs of an ``ExportedProgram``. Raises UsageError, SourceError."""
    from trtbuild.stages.trace import in_memory

    program_inputs = in_memory.program_inputs(exported)
    if inputs is None and kwarg_inputs is None:
        _refuse_without_ranges("dims", dims)
        _refuse_without_ranges("dynamic_shapes", dynamic_shapes)
        own_inputs = [SpecInput(entry.name, entry.dtype, entry.keyword) for entry in program_inputs]
        return _with_program_ranges(program_inputs, own_inputs, {})
    names = [entry.name for entry in program_inputs if not entry.keyword]
    requested = _sort_keywords(
        program_inputs,
        describe_inputs(inputs, kwarg_inputs, arguments=names, dims=dims, dynamic_shapes=dynamic_shapes),
    )
    _check_dtypes_and_ranks(program_inputs, requested)
    if len(requested.profiles) == 1 and _has_accepted_static_shapes(program_inputs, requested):
        _refuse_without_ranges("dims", dims)
        _refuse_fixed_dims(program_inputs, requested, dynamic_shapes)
        return _with_program_ranges(program_inputs, requested.inputs, dict(requested.profiles[0].shapes))
    requested = _passed_as_in_program(program_inputs, requested)
    if requested.dims:
        return requested
    return replace(requested, dims=_named_dims(program_inputs, requested.inputs))


def _passed_as_in_program(program_inputs: Sequence[Any], module_inputs: ModuleInputs) -> ModuleInputs:
    """Return `module_inputs`, by position or by name as in the program (rule 4)."""
    matches = _match_inputs(program_inputs, [entry.name for entry in module_inputs.inputs])
    inputs = [
        replace(entry, keyword=program.keyword) for entry, program in zip(module_inputs.inputs, matches, strict=True)
    ]
    return replace(module_inputs, inputs=tuple(inputs))


def _refuse_without_ranges(argument: str, value: Any) -> None:
    """Raise UsageError if `argument` is given (rule 2)."""
    if value:
        raise UsageError(
            f"{argument} has no effect: without ranges in inputs, the exported program keeps its own dims",
            hint=f"leave {argument} out; or give inputs with ranges: "
            "trtbuild.Input(min_shape=…, opt_shape=…, max_shape=…)",
        )


def _refuse_fixed_dims(program_inputs: Sequence[Any], module_inputs: ModuleInputs, dynamic_shapes: Any) -> None:
    """Raise UsageError if `dynamic_shapes` has a number for an axis that is dynamic in the program (rule 3)."""
    from trtbuild.stages.trace.in_memory import ProgramAxis

    if dynamic_shapes is None:
        return
    names = [entry.name for entry in module_inputs.inputs]
    entries = dict(zip(names, _match_inputs(program_inputs, names), strict=True))
    for name, axis in static_axes(module_inputs, dynamic_shapes):
        if isinstance(entries[name].shape[axis], ProgramAxis):
            raise UsageError(
                f"dynamic_shapes has a number for {name}.{axis}, which is dynamic in the exported program",
                hint="leave dynamic_shapes out, or export the program with this axis static",
            )


def _with_program_ranges(
    program_inputs: Sequence[Any], inputs: Sequence[SpecInput], examples: Mapping[str, ShapeRange]
) -> ModuleInputs:
    """Return `inputs` with the sizes of the program (rules 1 and 3). Raises UsageError.

    `examples`: input name → static shape. An input without an entry gets the opt sizes of the program's example.
    """
    from trtbuild.stages.trace.in_memory import ProgramAxis

    result: list[SpecInput] = []
    shapes: list[tuple[str, ShapeRange]] = []
    entries = _match_inputs(program_inputs, [entry.name for entry in inputs])
    for spec_input, entry in zip(inputs, entries, strict=True):
        result.append(SpecInput(spec_input.name, entry.dtype, entry.keyword, spec_input.range))
        example = examples.get(spec_input.name)
        ranges = []  # (min, opt, max) of each axis
        for number, axis in enumerate(entry.shape):
            if isinstance(axis, ProgramAxis):
                example_size = axis.example_size if example is None else example.opt[number]
                ranges.append(_range_of_axis(axis, f"{entry.name}.{number}", example_size))
            else:
                ranges.append((axis, axis, axis))
        min_sizes, opt_sizes, max_sizes = (tuple(sizes[which] for sizes in ranges) for which in range(3))
        shapes.append((spec_input.name, ShapeRange(min_sizes, opt_sizes, max_sizes)))
    return ModuleInputs(tuple(result), (Profile("0", tuple(shapes)),), _named_dims(program_inputs, result))


def _range_of_axis(axis: Any, place: str, example_size: int | None) -> tuple[int, int, int]:
    """Return the min, opt and max size of a `ProgramAxis`. Raises UsageError if it has no max. `place` names the axis."""
    if axis.high is None:
        raise UsageError(
            f"{place} of the exported program has no max, and an engine needs one",
            hint="export it with torch.export.Dim(name, min=…, max=…), or give inputs=[trtbuild.Input(…)]",
        )
    lowest = max(axis.low, axis.unit)
    opt = axis.high if example_size is None else example_size
    return lowest, min(max(opt, lowest), axis.high), axis.high


def _sort_keywords(program_inputs: Sequence[Any], module_inputs: ModuleInputs) -> ModuleInputs:
    """Return `module_inputs` in the order of rule 4."""
    positions = {entry.name: number for number, entry in enumerate(program_inputs)}
    order = sorted(
        range(len(module_inputs.inputs)),
        key=lambda number: (
            positions.get(module_inputs.inputs[number].name, len(program_inputs))
            if module_inputs.inputs[number].keyword
            else -1
        ),
    )
    return replace(
        module_inputs,
        inputs=tuple(module_inputs.inputs[number] for number in order),
        profiles=tuple(
            replace(profile, shapes=tuple(profile.shapes[number] for number in order))
            for profile in module_inputs.profiles
        ),
    )


def _check_dtypes_and_ranks(program_inputs: Sequence[Any], module_inputs: ModuleInputs) -> None:
    for number, program in enumerate(_match_inputs(program_inputs, [entry.name for entry in module_inputs.inputs])):
        entry = module_inputs.inputs[number]
        if entry.keyword and entry.name != program.name:
            raise UsageError(
                f"kwarg_inputs has {entry.name!r}, and an entry of inputs takes its place in the exported program",
                hint=f"the program takes {', '.join(other.name for other in program_inputs)}, in this order",
            )
        for profile in module_inputs.profiles:
            rank = len(profile.shapes[number][1].opt)
            if entry.dtype != program.dtype or rank != len(program.shape):
                raise UsageError(
                    f"input {entry.name!r} is {entry.dtype} with {rank} axes, and the exported program takes "
                    f"{program.dtype} with {len(program.shape)}",
                    hint="leave inputs out: the program has its own",
                )


def _has_accepted_static_shapes(program_inputs: Sequence[Any], module_inputs: ModuleInputs) -> bool:
    """Whether the only profile of `module_inputs` has static shapes that the program accepts (rule 3)."""
    from trtbuild.stages.trace.in_memory import ProgramAxis

    def fits(axis: Any, size: int) -> bool:
        if not isinstance(axis, ProgramAxis):
            return bool(size == axis)
        return axis.low <= size and (axis.high is None or size <= axis.high) and size % axis.unit == 0

    matches = _match_inputs(program_inputs, [entry.name for entry in module_inputs.inputs])
    (profile,) = module_inputs.profiles
    return all(
        shape.min == shape.max and all(map(fits, program.shape, shape.opt))
        for program, (_, shape) in zip(matches, profile.shapes, strict=True)
    )


def _match_inputs(program_inputs: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return the program's input for each of `names`: keyword inputs by name, the others by position.

    Raises UsageError if the program has other inputs.
    """
    by_name = {entry.name: entry for entry in program_inputs}
    positional = iter([entry for entry in program_inputs if not entry.keyword])
    matches = []
    for name in names:
        entry = by_name.get(name)
        matches.append(entry if entry is not None and entry.keyword else next(positional, None))
    if None in matches or len(matches) != len(program_inputs):
        raise UsageError(
            f"the exported program takes {[entry.name for entry in program_inputs]}, and {list(names)} are given",
            hint="leave inputs out: the program has its own",
        )
    return matches


def _named_dims(program_inputs: Sequence[Any], inputs: Sequence[SpecInput]) -> tuple[NamedDim, ...]:
    """Return the named dims of a program: one for each symbol, and one for each multiple of a symbol (rule 5).

    A symbol with a single axis and without a factor needs no name, so it is left out.
    """
    from trtbuild.stages.trace.in_memory import ProgramAxis

    axes_by_symbol: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for entry, spec_input in zip(
        _match_inputs(program_inputs, [spec_input.name for spec_input in inputs]), inputs, strict=True
    ):
        for number, axis in enumerate(entry.shape):
            if isinstance(axis, ProgramAxis):
                axes_by_symbol.setdefault((axis.symbol, axis.unit), []).append((spec_input.name, number))
    dims = [
        NamedDim(f"dim{dim_number}", tuple(axes), unit)
        for dim_number, ((_, unit), axes) in enumerate(axes_by_symbol.items())
    ]
    return tuple(dim for dim in dims if len(dim.at) > 1 or dim.multiple_of > 1)
