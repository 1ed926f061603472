"""The inputs of an ``ExportedProgram``, with the Dims of its export.

Rules
1. Without `inputs`, a dim has the program's range, and its opt size is the size in the program's example. If that size is
   not known, the opt size is the max size.
2. If `inputs` have static shapes that the program accepts (tensors, for example), these sizes are the opt sizes. All other
   `inputs`, such as ranges and several profiles, replace the program's ranges. The dtypes and ranks of `inputs` must be
   those of the program.
3. Keyword inputs are sorted into the program's order, so that the same model always has the same key.
4. Axes with the same symbol are one dim. ``2 * half`` is a separate dim, whose sizes are multiples of 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import Input as SpecInput
from trtbuild.core.model.spec import NamedDim, Profile, ShapeRange
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.inputs import describe_inputs
from trtbuild.errors import UsageError


def describe_program(
    exported: Any, inputs: Any, kwarg_inputs: Any, dims: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ModuleInputs:
    """Return the inputs of an ``ExportedProgram``. Raises UsageError, SourceError.

    A label is the name of an input in the result: the name that the caller gave, or the program's name.
    """
    from trtbuild.stages.trace.in_memory import ProgramAxis, program_inputs

    program_entries = program_inputs(exported)
    names = [entry.name for entry in program_entries if not entry.keyword]
    given_inputs: ModuleInputs | None = None
    if inputs is not None or kwarg_inputs is not None:
        given_inputs = _sort_keywords(
            program_entries,
            describe_inputs(inputs, kwarg_inputs, arguments=names, dims=dims, dynamic_shapes=dynamic_shapes),
        )
        _check_dtypes_and_ranks(program_entries, given_inputs)
        if len(given_inputs.profiles) > 1 or not _has_accepted_static_shapes(program_entries, given_inputs):
            return (
                given_inputs
                if given_inputs.dims
                else replace(given_inputs, dims=_named_dims(program_entries, given_inputs.inputs))
            )
    examples = dict(given_inputs.profiles[0].shapes) if given_inputs is not None else {}
    shapes: list[tuple[str, ShapeRange]] = []
    labels = (
        [entry.name for entry in given_inputs.inputs]
        if given_inputs is not None
        else [entry.name for entry in program_entries]
    )
    matched_entries = _match_entries(program_entries, labels)
    for label, entry in zip(labels, matched_entries, strict=True):
        min_sizes: list[int] = []
        opt_sizes: list[int] = []
        max_sizes: list[int] = []
        for number, axis in enumerate(entry.shape):
            if isinstance(axis, ProgramAxis):
                example_size = examples[label].opt[number] if label in examples else axis.hint
                sizes = _range_of_axis(axis, f"{entry.name}.{number}", example_size)
            else:
                sizes = (axis, axis, axis)
            for size_list, size in zip((min_sizes, opt_sizes, max_sizes), sizes, strict=True):
                size_list.append(size)
        shapes.append((label, ShapeRange(tuple(min_sizes), tuple(opt_sizes), tuple(max_sizes))))
    value_ranges = {entry.name: entry.range for entry in given_inputs.inputs} if given_inputs is not None else {}
    spec_inputs = tuple(
        SpecInput(label, entry.dtype, entry.keyword, value_ranges.get(label))
        for label, entry in zip(labels, matched_entries, strict=True)
    )
    return ModuleInputs(spec_inputs, (Profile("0", tuple(shapes)),), _named_dims(program_entries, spec_inputs))


def _range_of_axis(axis: Any, place: str, example_size: int | None) -> tuple[int, int, int]:
    """Return the min, opt and max size of a dynamic axis (rules 1 and 2). Raises UsageError if the axis has no max.

    `axis` is a `ProgramAxis`, and `place` names it in the error.
    """
    if axis.high is None:
        raise UsageError(
            f"{place} of the exported program has no max, and an engine needs one",
            hint="export it with torch.export.Dim(name, min=…, max=…), or give inputs=[trtbuild.Input(…)]",
        )
    lowest = max(axis.low, axis.unit)
    opt = axis.high if example_size is None else example_size
    return lowest, min(max(opt, lowest), axis.high), axis.high


def _sort_keywords(program_entries: Sequence[Any], module_inputs: ModuleInputs) -> ModuleInputs:
    """Return `module_inputs` with the keyword inputs in the program's order (rule 3)."""
    positions = {entry.name: number for number, entry in enumerate(program_entries)}
    order = sorted(
        range(len(module_inputs.inputs)),
        key=lambda number: (
            positions.get(module_inputs.inputs[number].name, len(program_entries))
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


def _check_dtypes_and_ranks(program_entries: Sequence[Any], module_inputs: ModuleInputs) -> None:
    """Raise UsageError if the dtype or rank of an input differs from the program's."""
    for number, program in enumerate(_match_entries(program_entries, [entry.name for entry in module_inputs.inputs])):
        entry = module_inputs.inputs[number]
        for profile in module_inputs.profiles:
            rank = len(profile.shapes[number][1].opt)
            if entry.dtype != program.dtype or rank != len(program.shape):
                raise UsageError(
                    f"input {entry.name!r} is {entry.dtype} with {rank} axes, and the exported program takes "
                    f"{program.dtype} with {len(program.shape)}",
                    hint="leave inputs out: the program has its own",
                )


def _has_accepted_static_shapes(program_entries: Sequence[Any], module_inputs: ModuleInputs) -> bool:
    """Whether `module_inputs`, which has one profile, has static shapes that the program accepts."""
    from trtbuild.stages.trace.in_memory import ProgramAxis

    def fits(axis: Any, size: int) -> bool:
        if not isinstance(axis, ProgramAxis):
            return bool(size == axis)
        return axis.low <= size and (axis.high is None or size <= axis.high) and size % axis.unit == 0

    ordered = _match_entries(program_entries, [entry.name for entry in module_inputs.inputs])
    (profile,) = module_inputs.profiles
    return all(
        shape.min == shape.max and all(map(fits, program.shape, shape.opt))
        for program, (_, shape) in zip(ordered, profile.shapes, strict=True)
    )


def _match_entries(program_entries: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Return the program's input for each label: keyword inputs by name, the others by position.

    Raises UsageError if the program has other inputs.
    """
    by_name = {entry.name: entry for entry in program_entries}
    positional = iter([entry for entry in program_entries if not entry.keyword])
    ordered = []
    for label in labels:
        entry = by_name.get(label)
        ordered.append(entry if entry is not None and entry.keyword else next(positional, None))
    if None in ordered or len(ordered) != len(program_entries):
        raise UsageError(
            f"the exported program takes {[entry.name for entry in program_entries]}, and {list(labels)} are given",
            hint="leave inputs out: the program has its own",
        )
    return ordered


def _named_dims(program_entries: Sequence[Any], inputs: Sequence[SpecInput]) -> tuple[NamedDim, ...]:
    """Return the named dims of a program: one for each symbol, and one for each multiple of a symbol.

    A symbol that only one axis has needs no name, so it is left out.
    """
    from trtbuild.stages.trace.in_memory import ProgramAxis

    axes_by_symbol: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for entry, spec_input in zip(
        _match_entries(program_entries, [spec_input.name for spec_input in inputs]), inputs, strict=True
    ):
        for number, axis in enumerate(entry.shape):
            if isinstance(axis, ProgramAxis):
                axes_by_symbol.setdefault((axis.symbol, axis.unit), []).append((spec_input.name, number))
    dims = [
        NamedDim(f"dim{dim_number}", tuple(axes), unit)
        for dim_number, ((_, unit), axes) in enumerate(axes_by_symbol.items())
    ]
    return tuple(dim for dim in dims if len(dim.at) > 1 or dim.multiple_of > 1)
