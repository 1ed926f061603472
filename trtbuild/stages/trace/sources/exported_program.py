"""``exported_program:`` sources: a ``.pt2`` file of torch.export.save.

The program is traced again with the manifest's dims, which may have narrower ranges, or may be static. Module paths and
names of weights stay the same. Values keep the dtypes of the file, even if it was exported with another default dtype.
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
from trtbuild.stages.trace.export.constraints import describe_symbol
from trtbuild.stages.trace.export.default_dtype import write_recorded_dtype
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.reading import SourceReader


class ExportedProgramSource(SourceReader):
    """Reads an ``exported_program:`` source."""

    def read(self) -> torch.nn.Module:
        """The module of the program in a ``.pt2`` file. Raises SourceError."""
        job, place = self.job, self.job.place("source")
        register_operators()
        try:
            exported = torch.export.load(self.path)
        except FileNotFoundError:
            raise SourceError(f"{job.source.target} does not exist", code="source", **place) from None
        except BaseException as error:
            self.frames.raise_from(
                _first_error(error),
                f"torch.export.load cannot read {job.source.target}",
                code="source",
                hint="write it with `torch.export.save(torch.export.export(model, …), path)` of this torch "
                f"({torch.__version__}); custom operators must be importable",
                fallback=place,
            )
        _refuse_different_inputs(exported, job)
        module = module_of_program(exported)
        try:
            write_recorded_dtype(module)
        except ValueError as error:
            raise SourceError(
                f"{job.source.target} was exported with another default dtype: {error}",
                code="source",
                hint="export with the default dtype torch.float32, and name the other dtype in the model (dtype=…)",
                **place,
            ) from error
        return module


def module_of_program(exported: ExportedProgram) -> torch.nn.Module:
    """The module of `exported`, for another export. `exported` does not change.

    ``torch.tensor(…)`` in a model's forward becomes two calls, lift_fresh_copy and detach_. Another export refuses this
    detach_ ("Can't detach views in-place"). Without gradients, detach_ changes nothing, so it is left out.
    """
    module = exported.module()
    for graph in module.modules():
        if isinstance(graph, torch.fx.GraphModule):
            for node in list(graph.graph.nodes):
                if node.target is torch.ops.aten.detach_.default:
                    node.replace_all_uses_with(node.args[0])
                    graph.graph.erase_node(node)
            graph.recompile()
    return module


def _first_error(error: BaseException) -> BaseException:
    """The first error in the chain of causes of `error`; `error` itself if it has no cause."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


@dataclass(frozen=True)
class _ExportedAxis:
    """A dynamic axis of an exported program. Its size is `multiple` times a symbol, from `low` to `high` (None if there is
    no upper bound)."""

    multiple: int
    low: int
    high: int | None


def _refuse_different_inputs(exported: ExportedProgram, job: TraceJob) -> None:
    """Raise SourceError if the manifest's inputs differ from those of a ``.pt2`` file, or are outside its ranges."""
    spec = exported.call_spec.in_spec
    count, keywords = spec.children()[0].num_leaves, list(spec.children()[1].context or [])
    positional_inputs = [entry for entry in job.inputs if not entry.keyword]
    keyword_names = [entry.name for entry in job.inputs if entry.keyword]
    if count != len(positional_inputs) or set(keywords) != set(keyword_names):
        raise SourceError(
            f"{job.source.target} takes {count} positional inputs and the keyword inputs {sorted(keywords)}; the manifest "
            f"declares {len(positional_inputs)} and {sorted(keyword_names)}",
            code="signature",
            hint="`keyword: true` passes an input by its name",
            **job.place("inputs", *(f"inputs.{entry.name}" for entry in job.inputs)),
        )
    values = _input_values(exported)
    order = {name: count + position for position, name in enumerate(keywords)}
    positional = iter(range(count))
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
            _refuse_different_axis(f"{entry.name}.{number}", axis, _exported_axis(size, exported), job)


def _refuse_different_axis(
    where: str,
    axis: int | SymbolAxis,
    exported_axis: int | _ExportedAxis | str,
    job: TraceJob,
) -> None:
    """Raise SourceError if the manifest's `axis` at `where` (``image.2``) does not fit the `exported_axis` of the file."""
    plan, file = job.shapes, job.source.target
    place = job.place(f"inputs.{where.rpartition('.')[0]}")
    if isinstance(axis, SymbolAxis):
        symbol = plan.symbols[axis.symbol]
        subject, low, high, multiple = (
            describe_symbol(plan, job.inputs, axis.symbol),
            symbol.min,
            symbol.max,
            symbol.multiple_of,
        )
        place = job.place(f"dims.{symbol.name}", f"inputs.{where.rpartition('.')[0]}")
    else:
        subject, low, high, multiple = where, axis, axis, axis
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
            f"{subject} of {file} was exported for {exported_axis.low}.."
            f"{'' if exported_axis.high is None else exported_axis.high}; the profiles say "
            + (f"{low}..{high}" if high != low else f"{low}"),
            code="range",
            hint="narrow the profiles, or export it again with a wider Dim",
            **place,
        )
    if multiple % exported_axis.multiple:
        raise SourceError(
            f"{subject} of {file} was exported as a multiple of {exported_axis.multiple}",
            code="range",
            hint=f"write multiple_of: {exported_axis.multiple} in dims, and sizes that are multiples of it",
            **place,
        )


def _exported_axis(size: Any, exported: ExportedProgram) -> int | _ExportedAxis | str:
    """Describe the axis that has this `size` in `exported`. The result is a text if the size is neither a number nor a
    multiple of one symbol."""
    if isinstance(size, int):
        return size
    multiple_and_symbol = _multiple_and_symbol(size.node.expr)
    if multiple_and_symbol is None:
        return str(size)
    multiple, symbol = multiple_and_symbol
    ranges = exported.range_constraints
    bounds = ranges.get(size.node.expr)
    if bounds is None:
        bounds = ranges.get(symbol)
        if bounds is None:
            return _ExportedAxis(multiple, 0, None)
        low, upper = int(bounds.lower) * multiple, bounds.upper * multiple
    else:
        low, upper = int(bounds.lower), bounds.upper
    # if the Dim has no upper bound, torch's bound is infinite, or near 2**63
    high = int(upper) if getattr(upper, "is_finite", True) and upper < 2**62 else None
    return _ExportedAxis(multiple, low, high)


def _multiple_and_symbol(expr: Any) -> tuple[int, Any] | None:
    """Return (k, s) for ``k*s``, None for anything else."""
    multiple, rest = expr.as_coeff_Mul()
    return (int(multiple), rest) if rest.is_Symbol and multiple.is_Integer and multiple > 0 else None


def _input_values(exported: ExportedProgram) -> list[Any]:
    by_name = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    return [
        by_name.get(spec.arg.name, getattr(spec.arg, "value", None))
        for spec in exported.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]
