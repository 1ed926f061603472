"""The inputs of a program of torch.export: its own, with its own Dims.

Rules
1. Without `inputs` a dim's range is the program's, and opt the size in its example (its max, where that is not known).
2. Tensors as `inputs` say opt. `Input`s with ranges say all, and have to lie in the program's.
3. Axes with one symbol are one dim; ``2 * half`` is a dim of multiples of 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.spec import Input as SpecInput
from trtbuild.core.spec import NamedDim, Profile, ShapeRange
from trtbuild.driver.in_program.inputs import Described, describe
from trtbuild.errors import UsageError


def describe_program(
    exported: Any, inputs: Any, kwarg_inputs: Any, dims: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Described:
    """The inputs of a program of torch.export. Raises UsageError, SourceError."""
    from trtbuild.stages.trace.in_memory import ProgramAxis, program_inputs

    own = program_inputs(exported)
    names = [entry.name for entry in own if not entry.keyword]
    given: Described | None = None
    if inputs is not None or kwarg_inputs is not None:
        given = describe(inputs, kwarg_inputs, arguments=names, dims=dims, dynamic_shapes=dynamic_shapes)
        if any(shape.min != shape.max for profile in given.profiles for _, shape in profile.shapes):
            return given if given.dims else replace(given, dims=_shared(own, given.inputs))
    examples = dict(given.profiles[0].shapes) if given is not None else {}
    shapes: list[tuple[str, ShapeRange]] = []
    order = {name: entry for entry in own for name in (entry.name,)}
    labels = [entry.name for entry in given.inputs] if given is not None else [entry.name for entry in own]
    for label, entry in zip(labels, _in_order(own, labels, order), strict=True):
        low: list[int] = []
        mid: list[int] = []
        high: list[int] = []
        for number, axis in enumerate(entry.shape):
            said = examples[label].opt[number] if label in examples and number < len(examples[label].opt) else None
            if not isinstance(axis, ProgramAxis):
                sizes = (axis, axis, axis)
            else:
                if axis.high is None:
                    raise UsageError(
                        f"{entry.name}.{number} of the exported program has no max, and an engine needs one",
                        hint="export it with torch.export.Dim(name, min=…, max=…), or give inputs=[trtbuild.Input(…)]",
                    )
                least = max(axis.low, axis.unit)
                opt = said if said is not None else axis.hint if axis.hint is not None else axis.high
                sizes = (least, min(max(opt, least), axis.high), axis.high)
            for sizes_of, size in zip((low, mid, high), sizes, strict=True):
                sizes_of.append(size)
        shapes.append((label, ShapeRange(tuple(low), tuple(mid), tuple(high))))
    made = tuple(
        SpecInput(label, entry.dtype, entry.keyword)
        for label, entry in zip(labels, _in_order(own, labels, order), strict=True)
    )
    return Described(made, (Profile("0", tuple(shapes)),), _shared(own, made))


def _in_order(own: Sequence[Any], labels: Sequence[str], by_name: Mapping[str, Any]) -> list[Any]:
    """The program's inputs in the order of `labels`: positional ones by place, keyword ones by name."""
    positional = iter([entry for entry in own if not entry.keyword])
    found = []
    for label in labels:
        entry = by_name.get(label)
        found.append(entry if entry is not None and entry.keyword else next(positional, None))
    if None in found or len(found) != len(own):
        raise UsageError(
            f"the exported program takes {[entry.name for entry in own]}, and {list(labels)} are given",
            hint="leave inputs out: the program has its own",
        )
    return found


def _shared(own: Sequence[Any], inputs: Sequence[SpecInput]) -> tuple[NamedDim, ...]:
    """The dims of a program: one for each symbol and multiple of it."""
    from trtbuild.stages.trace.in_memory import ProgramAxis

    places: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for entry, given in zip(own, inputs, strict=False):
        for number, axis in enumerate(entry.shape):
            if isinstance(axis, ProgramAxis):
                places.setdefault((axis.symbol, axis.unit), []).append((given.name, number))
    named = [NamedDim(f"dim{k}", tuple(at), unit) for k, ((_, unit), at) in enumerate(places.items())]
    return tuple(dim for dim in named if len(dim.at) > 1 or dim.multiple_of > 1)
