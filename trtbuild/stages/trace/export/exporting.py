"""Call torch.export, and turn its refusals into errors with the manifest's inputs and dims.

Rules
1. All Dims are named, over the union of the profiles' ranges; ``Dim.AUTO`` would drop guards. A ``multiple_of`` is a
   derived dim.
2. A symbol at several axes is one Dim.
3. The result is functionalized (``run_decompositions({})``, or `decomposing`). This removes in-place writes to views,
   and makes mutated buffers visible.
4. The guards that export does not report are returned (`Exported.guards`). They are about derived dims, relations
   between dims, and sizes that are assumed not to be 1. `proof` tries the sizes that break them.
5. torch assumes that every dynamic size is 2 or more, so it replaces a dim whose range ends at 2 by a number. Such a
   dim is traced with a range up to `LEAST_MAX`. A model that does not allow this (it has a table of two rows) is traced
   as declared.
6. Symbols that must be equal, and are declared alike (`TraceJob.alike`), are tied: the model is traced again with one
   symbol for both. Otherwise it is an error.
7. If a guard fixes a symbol to the example's size, the model is traced with larger examples: the guard may be about a
   derived size that is 1 in the example alone (``x[1:]`` with 2 rows). The proof decides whether the result is right.
8. Keyword inputs of a program of torch.export must be in the program's order: torch.export reads them by position when
   it traces such a module again (2.13), although the module itself reads them by name.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from trtbuild.core.model.shapes import ShapePlan, SymbolAxis, kept_symbols
from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.export.constraints import Violation, torch_name, violations
from trtbuild.stages.trace.export.decomposing import decomposed
from trtbuild.stages.trace.export.guard_filter import GuardFilter
from trtbuild.stages.trace.export.guards import arguments_by_number
from trtbuild.stages.trace.export.signature import bound_to_forward
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.advice import shape_advice, text_of, value_advice
from trtbuild.stages.trace.user_code.frames import Frames

#: The smallest upper end of a dim's range, in its unit (rule 5).
LEAST_MAX = 3
#: Larger examples (rule 7) have at most this many elements.
_MOST_ELEMENTS = 1 << 27


@dataclass
class Exported:
    """An exported module. `raw` is the result of torch.export, with stack traces; `program` is functionalized.

    `guards` are the guards that torch.export does not report. `assumed` are the guards that were taken out of its report
    (`guard_filter`). The proof tries sizes that break them. `ties` are the pairs of symbols of the given job that are tied.
    """

    raw: ExportedProgram
    program: ExportedProgram
    guards: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    ties: tuple[tuple[int, int], ...] = ()


def export(module: torch.nn.Module, job: TraceJob, frames: Frames) -> Exported:
    """Trace `module` at the example shapes. Raises SourceError."""
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.example_shapes))
    arguments = bound_to_forward(module, job, args, kwargs, frames)
    exporter = _Exporter(module, job, arguments, frames)
    try:
        raw = exporter.export()
    except GuardOnDataDependentSymNode as error:
        frames.raise_from(
            error,
            "the model's control flow or a size in it depends on the values of a tensor, which a static graph cannot hold",
            code="data-dependent",
            hint="write the branch with torch.where or torch.cond, and let sizes follow from shapes",
            fallback=job.place("source"),
            internal=True,
        )
    except (Exception, SystemExit) as error:
        _raise_violations(exporter, error, frames)
        raise_eager(module, job, frames)
        _raise_unknown_output(module, error, job, frames)
        _raise_resized(error, job, frames)
        frames.raise_from(error, "torch.export cannot trace the model", code="export", fallback=job.place("source"))
    guards = tuple(getattr(raw, "_guards_code", None) or ())
    try:
        program = functionalized(raw)
    except Exception as error:
        frames.raise_from(
            error, "torch cannot functionalize the traced model", code="export", fallback=job.place("source")
        )
    return Exported(raw, program, guards, tuple(exporter.filter.assumed), tuple(exporter.ties))


def functionalized(raw: ExportedProgram) -> ExportedProgram:
    """A functionalized copy of `raw` (rule 3), with the same symbols and tensors. Raises torch's errors."""
    return decomposed(raw) or raw.run_decompositions({})


class _Exporter:
    """Calls torch.export until it accepts the module, with ties (rule 6) and larger examples (rule 7).

    `job` and `filter` belong to the last call whose error or program is returned.
    """

    def __init__(self, module: torch.nn.Module, job: TraceJob, bound: inspect.BoundArguments, frames: Frames) -> None:
        self.ties: list[tuple[int, int]] = []
        self._module, self._declared, self._bound, self._frames = module, job, bound, frames
        self._choose(job)

    def _choose(self, job: TraceJob) -> None:
        self.job = job
        self.filter = GuardFilter(job, arguments_by_number(self._bound.signature, job.inputs), self._frames)

    def export(self) -> ExportedProgram:
        """Raises the errors of torch.export."""
        while True:
            try:
                return self._export()
            except Exception as error:
                found = violations_in(error, self.job)
                ties = self._ties(found)
                if not ties:
                    program = self._export_larger(found)
                    if program is None:
                        raise
                    return program
                self.ties += ties
                self._choose(self._declared.tied(self.ties))

    def _ties(self, found: Sequence[Violation]) -> list[tuple[int, int]]:
        """The ties that remove violations, by the declared numbers of the symbols. Empty if one pair is not declared
        alike: its error is reported then."""
        declared = [*dict.fromkeys(kept_symbols(len(self._declared.shapes.symbols), self.ties))]
        pairs = [(declared[v.symbol], declared[v.equal]) for v in found if v.equal is not None]
        return pairs if all(self._declared.alike(*pair) for pair in pairs) else []

    def _export_larger(self, found: Sequence[Violation]) -> ExportedProgram | None:
        """Export with larger examples of the symbols that are fixed to one size. None if that is not accepted either."""
        job, used = self.job, self.filter
        fixed = {violation.symbol for violation in found if violation.size is not None}
        for shapes in larger_examples(job.shapes, fixed):
            self._choose(replace(job, shapes=shapes))
            with contextlib.suppress(Exception):  # the first error is the one that the user can do something about
                return self._export()
        self.job, self.filter = job, used
        return None

    def _export(self) -> ExportedProgram:
        job = self.job
        args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.example_shapes))
        kwargs = _in_order(self._module, self._bound.signature, kwargs)
        if any(symbol.max // symbol.multiple_of < LEAST_MAX for symbol in job.shapes.symbols):
            try:
                return self._export_up_to(LEAST_MAX, args, kwargs)
            except Exception as error:  # the declared ranges, below, raise it again, but do not show equal sizes
                if self._ties(violations_in(error, job)):
                    raise
        return self._export_up_to(0, args, kwargs)

    def _export_up_to(self, least: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
        dynamic = _dynamic_shapes(self._bound, self.job, args, kwargs, dims_of(self.job.shapes, least))
        with self.filter.active(sys._getframe()):
            return torch.export.export(self._module, args, kwargs, dynamic_shapes=dynamic, strict=False)


def larger_examples(plan: ShapePlan, fixed: Collection[int]) -> Iterator[ShapePlan]:
    """The plan with larger examples for the symbols `fixed`, as far as their ranges and memory allow."""
    tried = {plan.example_shapes}
    for enlarged in (lambda units: 2 * units + 1, lambda units: sys.maxsize):
        symbols = tuple(
            replace(
                symbol,
                example=min(enlarged(symbol.example // symbol.multiple_of) * symbol.multiple_of, symbol.max),
            )
            if number in fixed
            else symbol
            for number, symbol in enumerate(plan.symbols)
        )
        larger = ShapePlan(symbols, plan.shapes)
        if larger.example_shapes not in tried and sum(map(math.prod, larger.example_shapes)) <= _MOST_ELEMENTS:
            tried.add(larger.example_shapes)
            yield larger


def dims_of(plan: ShapePlan, least: int = 0) -> list[Any]:
    """Make one torch Dim for each symbol (a derived Dim for ``multiple_of``). A range ends at `least` units or
    later."""
    dims = []
    for number, symbol in enumerate(plan.symbols):
        unit = symbol.multiple_of
        dim = Dim(torch_name(number), min=symbol.min // unit, max=max(symbol.max // unit, least))
        dims.append(unit * dim if unit > 1 else dim)
    return dims


def _in_order(module: torch.nn.Module, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return `kwargs` in the order that torch.export needs (rule 6)."""
    if not isinstance(module, torch.fx.GraphModule):
        return kwargs
    positions = {name: number for number, name in enumerate(signature.parameters)}
    return {name: kwargs[name] for name in sorted(kwargs, key=lambda name: positions.get(name, len(positions)))}


def _dynamic_shapes(
    bound: inspect.BoundArguments, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any], dims: list[Any]
) -> dict[str, Any]:
    """The dim of each axis of each argument, in the structure of forward's parameters."""
    per_input = [
        {number: dims[axis.symbol] for number, axis in enumerate(shape) if isinstance(axis, SymbolAxis)}
        for shape in job.shapes.shapes
    ]
    # bind again, with each tensor's dims instead of the tensor
    dim_args, dim_kwargs = call_arguments(job.inputs, per_input)
    rebound = bound.signature.bind(*dim_args, **dim_kwargs)
    return dict(rebound.arguments)


def raise_eager(module: torch.nn.Module, job: TraceJob, frames: Frames) -> None:
    """Raise the error of the model itself if the model fails at the example. Its text has numbers instead of
    symbols."""
    shapes = job.shapes.example_shapes
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, shapes))
    try:
        module(*args, **kwargs)
    except (Exception, SystemExit) as error:
        shapes_text = ", ".join(f"{entry.name} {list(shape)}" for entry, shape in zip(job.inputs, shapes, strict=True))
        frames.raise_from(
            error,
            f"the model itself fails at the example shapes: {shapes_text}",
            code="eager",
            hint=shape_advice(
                error,
                job.inputs,
                value_advice(error, job.inputs)
                or "these are the first profile's opt (or 2, where that is 0 or 1): correct the profiles, or the model",
            ),
            fallback=job.place("source"),
        )


def _raise_unknown_output(module: torch.nn.Module, error: BaseException, job: TraceJob, frames: Frames) -> None:
    match = re.search(r"Found <class '(?:builtins\.)?([^']+)'> in output, which is not a known type", text_of(error))
    if match:
        raise SourceError(
            f"the model returns a value of type {match[1]}, which is neither a tensor nor a plain constant",
            code="output",
            hint="return tensors, in tuples, lists, dicts or registered dataclasses",
            **(frames.definition(module.forward) or job.place("source")),
        ) from error


def _raise_resized(error: BaseException, job: TraceJob, frames: Frames) -> None:
    if "directly modify sizes" in text_of(error):
        frames.raise_from(
            error,
            "torch.export cannot trace an operator that resizes a tensor with dynamic sizes in place (aten.resize_)",
            code="export",
            hint="use slicing and reshape, or make the sizes static",
            fallback=job.place("source"),
            internal=True,
        )


def _raise_violations(exporter: _Exporter, error: BaseException, frames: Frames) -> None:
    """Raise the SourceError of a refusal of torch.export, at the line of user code that restricts the size."""
    job = exporter.job
    found = violations_in(error, job)
    if not found:
        return
    texts = [violation.text for violation in found]
    hints = list(dict.fromkeys(violation.hint for violation in found))
    declared = job.place(found[0].path)
    places = exporter.filter.places
    # two dims that must be equal are a matter of the manifest
    place = next((places[v.symbol] for v in found if v.equal is None and v.symbol in places), None)
    if place is None:
        raise SourceError("; ".join(texts), code="constraint", hint="; ".join(hints), **declared) from error
    if declared:
        hints.append(f"the size is declared at {declared['file']}:{declared['line']}")
    raise SourceError(
        "; ".join(texts), code="constraint", hint="; ".join(hints), file=place[0], line=place[1]
    ) from error


def violations_in(error: BaseException, job: TraceJob) -> list[Violation]:
    if not isinstance(error, UserError | ConstraintViolationError | ValueError):
        return []
    return violations(text_of(error), job.shapes, job.inputs)
