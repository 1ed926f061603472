"""``exported_program:`` sources: a ``.pt2`` file of torch.export.save.

The program is traced again, under the manifest's dims. This narrows its ranges and makes dims static. Module paths and
weights' names stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.core.model.shapes import SymbolAxis
from trtbuild.errors import SourceError
from trtbuild.stages.program.quantized import register_operators
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.export.constraints import describe
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.reading import SourceReader


class ExportedProgramSource(SourceReader):
    def read(self) -> torch.nn.Module:
        """The module of a ``.pt2`` file. Raises SourceError."""
        job, place = self.job, self.job.place("source")
        register_operators()
        try:
            exported = torch.export.load(self.path)
        except FileNotFoundError:
            raise SourceError(f"{job.source.target} does not exist", code="source", **place) from None
        except BaseException as error:
            self.frames.raise_from(
                _innermost(error),
                f"torch.export.load cannot read {job.source.target}",
                code="source",
                hint="write it with `torch.export.save(torch.export.export(model, …), path)` of this torch "
                f"({torch.__version__}); custom operators must be importable",
                fallback=place,
            )
        _refuse_misfit(exported, job)
        return exported.module()


def _innermost(error: BaseException) -> BaseException:
    """The first error of a chain, which caused the other errors that torch raised."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


@dataclass(frozen=True)
class _Declared:
    """An axis of an exported program: ``unit × symbol`` from `low` to `high` (None: no bound)."""

    symbol: str
    unit: int
    low: int
    high: int | None


def _refuse_misfit(exported: ExportedProgram, job: TraceJob) -> None:
    """Raise SourceError if the manifest's inputs differ from those of a ``.pt2`` file, or are outside its ranges."""
    spec = exported.call_spec.in_spec
    count, keywords = spec.children()[0].num_leaves, list(spec.children()[1].context or [])
    declared = [entry for entry in job.inputs if not entry.keyword]
    named = [entry.name for entry in job.inputs if entry.keyword]
    if count != len(declared) or set(keywords) != set(named):
        raise SourceError(
            f"{job.source.target} takes {count} positional inputs and the keyword inputs {sorted(keywords)}; the manifest "
            f"declares {len(declared)} and {sorted(named)}",
            code="signature",
            hint="`keyword: true` passes an input by its name",
            **job.place("inputs", *(f"inputs.{entry.name}" for entry in job.inputs)),
        )
    values = _input_values(exported)
    order = {name: count + position for position, name in enumerate(keywords)}
    positional = iter(range(count))
    symbols: dict[int, tuple[str, str]] = {}
    for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True):
        value = values[order[entry.name] if entry.keyword else next(positional)]
        place = job.place(f"inputs.{entry.name}")
        if not isinstance(value, torch.Tensor):
            raise SourceError(
                f"{job.source.target} takes a {type(value).__name__} for {entry.name!r}, not a tensor",
                code="signature",
                hint="export it with that value fixed",
                **place,
            )
        if dtype_name(value.dtype) != entry.dtype or value.dim() != len(shape):
            raise SourceError(
                f"input {entry.name!r} of {job.source.target} is {dtype_name(value.dtype)} with {value.dim()} axes; the "
                f"manifest says {entry.dtype} with {len(shape)}",
                code="signature",
                **place,
            )
        for number, (axis, size) in enumerate(zip(shape, value.shape, strict=True)):
            _refuse_axis(f"{entry.name}.{number}", axis, _declared(size, exported), symbols, job)


def _refuse_axis(
    where: str,
    axis: int | SymbolAxis,
    exported_axis: int | _Declared | str,
    symbols: dict[int, tuple[str, str]],
    job: TraceJob,
) -> None:
    plan, file = job.shapes, job.source.target
    place = job.place(f"inputs.{where.rpartition('.')[0]}")
    if isinstance(axis, SymbolAxis):
        symbol = plan.symbols[axis.symbol]
        what, low, high, unit = describe(plan, job.inputs, axis.symbol), symbol.min, symbol.max, symbol.multiple_of
        place = job.place(f"dims.{symbol.name}", f"inputs.{where.rpartition('.')[0]}")
    else:
        what, low, high, unit = where, axis, axis, axis or 1
    if isinstance(exported_axis, str):
        raise SourceError(
            f"{where} of {file} is {exported_axis}, which a manifest cannot express", code="range", **place
        )
    if isinstance(exported_axis, int):
        if low != exported_axis or high != exported_axis:
            raise SourceError(
                f"{where} of {file} is fixed to {exported_axis}; the profiles say {low}"
                + (f"..{high}" if high != low else ""),
                code="range",
                hint=f"export it with a dynamic dim there, or write {exported_axis} in every profile",
                **place,
            )
        return
    if low < exported_axis.low or (exported_axis.high is not None and high > exported_axis.high):
        raise SourceError(
            f"{what} of {file} was exported for {exported_axis.low}.."
            f"{'' if exported_axis.high is None else exported_axis.high}; the profiles say "
            + (f"{low}..{high}" if high != low else f"{low}"),
            code="range",
            hint="narrow the profiles, or export it again with a wider Dim",
            **place,
        )
    if unit % exported_axis.unit:
        raise SourceError(
            f"{what} of {file} was exported as a multiple of {exported_axis.unit}",
            code="range",
            hint=f"write multiple_of: {exported_axis.unit} in dims, and sizes that are multiples of it",
            **place,
        )
    if isinstance(axis, SymbolAxis):
        first_use = symbols.setdefault(axis.symbol, (where, exported_axis.symbol))
        if first_use[1] != exported_axis.symbol:
            # two dims of the file have one name in the manifest: the export under the manifest's dims makes them equal
            return


def _declared(size: Any, exported: ExportedProgram) -> int | _Declared | str:
    if isinstance(size, int):
        return size
    parts = _unit_and_symbol(size.node.expr)
    if parts is None:
        return str(size)
    unit, symbol = parts
    ranges = exported.range_constraints
    bounds = ranges.get(size.node.expr)
    if bounds is None:
        bounds = ranges.get(symbol)
        if bounds is None:
            return _Declared(str(symbol), unit, 0, None)
        scaled = (int(bounds.lower) * unit, bounds.upper * unit)
    else:
        scaled = (int(bounds.lower), bounds.upper)
    high = int(scaled[1]) if getattr(scaled[1], "is_finite", True) and scaled[1] < 2**62 else None
    return _Declared(str(symbol), unit, scaled[0], high)


def _unit_and_symbol(expr: Any) -> tuple[int, Any] | None:
    """Return (k, s) for ``k*s``, None for anything else."""
    unit, rest = expr.as_coeff_Mul()
    return (int(unit), rest) if rest.is_Symbol and unit.is_Integer and unit > 0 else None


def _input_values(exported: ExportedProgram) -> list[Any]:
    by_name = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    return [
        by_name.get(spec.arg.name, getattr(spec.arg, "value", None))
        for spec in exported.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]
