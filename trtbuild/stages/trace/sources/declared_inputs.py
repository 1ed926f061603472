"""Check that a source that is already a graph has the inputs that the manifest declares, and describe its interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.core.model.shapes import Axis, SymbolAxis
from trtbuild.core.model.spec import Input
from trtbuild.core.values.expressions import Expression
from trtbuild.core.values.nearest import nearest
from trtbuild.errors import SourceError
from trtbuild.stages.trace.export.constraints import describe_symbol
from trtbuild.stages.trace.job import TraceJob


def refuse_different_input_names(names: Sequence[str], job: TraceJob, place: dict[str, Any] | None = None) -> None:
    """Raise SourceError if the names of the model's inputs are not those of the manifest. The order does not matter.

    `place` has the file and line of an error about an input that the manifest does not declare. The default is the place of
    the manifest's inputs.
    """
    target, declared = job.source.target, [entry.name for entry in job.inputs]
    for name in declared:
        if name not in names:
            similar = nearest(name, [other for other in names if other not in declared])
            raise SourceError(
                f"{target} has no input {name!r}",
                code="signature",
                hint=(f"did you mean {similar!r}? " if similar else "")
                + f"its inputs are: {', '.join(names) or 'none'}",
                **job.place(f"inputs.{name}", "inputs"),
            )
    for name in names:
        if name not in declared:
            raise SourceError(
                f"{target} has an input {name!r}, which the manifest does not declare",
                code="signature",
                hint=f"add `{name}` to inputs, and its shapes to the profiles",
                **(place or job.place("inputs", "source")),
            )


def refuse_different_input(
    entry: Input, shape: Sequence[Axis], dtype: str, sizes: Sequence[int | None], job: TraceJob, place: Any = None
) -> None:
    """Raise SourceError if an input of the model differs from the manifest.

    `entry` and `shape` come from the manifest, `dtype` and `sizes` from the model. A size of None is dynamic: the manifest
    may declare any size. Otherwise it must declare the same size. `place` has the file and line of the error; the default
    is the place of the input in the manifest.
    """
    target = job.source.target
    place = place or job.place(f"inputs.{entry.name}")
    if dtype != entry.dtype or len(sizes) != len(shape):
        axes = "1 axis" if len(sizes) == 1 else f"{len(sizes)} axes"
        raise SourceError(
            f"input {entry.name!r} of {target} is {dtype} with {axes}; the manifest says {entry.dtype} with {len(shape)}",
            code="signature",
            hint=f"write inputs: {{{entry.name}: {{dtype: {dtype}}}}}" if dtype != entry.dtype else None,
            **place,
        )
    for number, (axis, size) in enumerate(zip(shape, sizes, strict=True)):
        if size is None or size == axis:
            continue
        where = f"{entry.name}.{number}"
        if isinstance(axis, SymbolAxis):
            symbol = job.shapes.symbols[axis.symbol]
            subject = describe_symbol(job.shapes, job.inputs, axis.symbol)
            declared = f"the profiles say {symbol.min}..{symbol.max} for {subject}"
        else:
            declared = f"the profiles say {axis}"
        raise SourceError(
            f"{where} of {target} is fixed to {size}; {declared}",
            code="range",
            hint=f"give it a dynamic size there, or write {size} in every profile"
            if isinstance(axis, SymbolAxis)
            else f"write {size} in every profile, or give it that size",
            **place,
        )


def size_expression(axis: Axis, job: TraceJob) -> Expression:
    """The size of a declared axis as a size expression over the graph's symbols (``multiple_of × symbol``)."""
    if isinstance(axis, int):
        return axis
    multiple = job.shapes.symbols[axis.symbol].multiple_of
    return ["sym", axis.symbol] if multiple == 1 else ["mul", multiple, ["sym", axis.symbol]]


def graph_interface(
    job: TraceJob, weights: Sequence[dict[str, Any]], outputs: Sequence[tuple[str, str, Sequence[Expression]]]
) -> dict[str, Any]:
    """The interface of a source that is a graph already, in the form of `trtbuild.stages.trace.export.interface`.

    `outputs` are (name, dtype, shape). A model with one output returns a tensor, a model with several returns a tuple.
    """
    leaves = [{"kind": "tensor", "index": index} for index in range(len(outputs))]
    return {
        "weights": list(weights),
        "aliases": {},
        "unused": [],
        "inputs": [
            {
                "name": entry.name,
                "keyword": entry.keyword,
                "dtype": entry.dtype,
                "shape": [size_expression(axis, job) for axis in shape],
            }
            for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)
        ],
        "outputs": [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in outputs],
        "output_tree": leaves[0] if len(leaves) == 1 else {"kind": "tuple", "items": leaves},
        "symbols": [
            {"name": s.name, "min": s.min, "max": s.max, "multiple_of": s.multiple_of} for s in job.shapes.symbols
        ],
    }
