"""Call torch.export. `refusals` turns its errors into SourceErrors for the user.

A *guard* is a condition on sizes that torch assumes while it traces a model.

Rules
1. Every dynamic axis has a named Dim, whose range covers the ranges of all profiles. ``Dim.AUTO`` is not used, because it
   drops guards. The Dim of a symbol with ``multiple_of: k`` is k times another Dim (torch calls this a derived dim).
2. A symbol at several axes is one Dim.
3. The result is functionalized (by `decomposing`, or by ``run_decompositions({})``). This removes in-place writes to
   views, and shows which buffers the model writes to.
4. torch.export does not report some guards: those about derived dims, about relations between dims, and about sizes that
   torch assumes not to be 1. These guards are in `Exported.guards`, too, and `proof` tries sizes that break them.
5. torch assumes that every dynamic size is 2 or more. So a dim whose range ends at 2 would become the number 2. Such a dim
   is traced with a range up to `LEAST_MAX` instead. If the model does not allow this (a table of two rows, for example),
   the dim is traced with the declared range.
6. If two symbols must be equal in the model, and are declared alike (`TraceJob.alike`), the model is traced again with one
   symbol for both: they are *tied*. If they are not declared alike, this is an error.
7. If a guard fixes a symbol to the example's size, or sets an upper limit, the model is traced with larger examples. The
   guard may be about a computed size that is 1 only in the example (``x[1:]`` with 2 rows). Or the computed size
   is 1 in the example and for every smaller value of the symbol (the number of windows, after padding to a whole window).
   The proof decides whether the result is right.
8. If the module is itself a program of torch.export, its keyword inputs must be in the program's order, because
   torch.export 2.13 reads them by position.
9. torch.export 2.13 fails if forward takes an input in ``**kwargs``. So during the export, forward has a parameter with the
   name of this input.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim, ExportedProgram

from trtbuild.core.model.shapes import ShapePlan, SymbolAxis, kept_symbols
from trtbuild.stages.program.custom_operators import allow_data_dependent_sizes_below_two
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.constraints import Violation, torch_name
from trtbuild.stages.trace.export.decomposing import decompose_without_retrace
from trtbuild.stages.trace.export.default_dtype import write_default_dtype
from trtbuild.stages.trace.export.guards.guard import arguments_as_input_numbers
from trtbuild.stages.trace.export.guards.guard_filter import GuardFilter
from trtbuild.stages.trace.export.refusals import raise_refusal, raise_violations, violations_in
from trtbuild.stages.trace.export.signature import bind_to_forward
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.fake_quantize import define_fake_kernels
from trtbuild.stages.trace.user_code.frames import Frames

#: The range of a torch Dim ends at this size or later, if the model allows it (rule 5).
LEAST_MAX = 3
#: Larger examples (rule 7) have at most this many elements.
_MAX_EXAMPLE_ELEMENTS = 1 << 27


@dataclass
class Exported:
    """An exported module. `raw` is the result of torch.export, with stack traces; `program` is functionalized.

    `guards` are the guards of `raw`. `assumptions` are guards that torch.export would report as errors, but that
    `guard_filter` has removed or avoided. The proof tries sizes that break a guard or an assumption. `ties` are the pairs
    of tied symbols (rule 6), by their numbers in the job.
    """

    raw: ExportedProgram
    program: ExportedProgram
    guards: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    ties: tuple[tuple[int, int], ...] = ()


@allow_data_dependent_sizes_below_two()  # otherwise torch assumes that such sizes of older operators are at least 2
def export(module: torch.nn.Module, job: TraceJob, frames: Frames) -> Exported:
    """Trace `module` at the example shapes. Raises SourceError."""
    define_fake_kernels()
    args, kwargs = call_arguments(job.inputs, example_tensors(job.inputs, job.shapes.example_shapes))
    arguments = bind_to_forward(module, job, args, kwargs, frames)
    exporter = _Exporter(module, job, arguments, frames)
    try:
        raw = exporter.export()
    except (Exception, SystemExit) as error:
        raise_violations(error, exporter.job, exporter.guard_filter.places)
        raise_refusal(error, module, job, frames)
    guards = tuple(getattr(raw, "_guards_code", None) or ())
    try:
        with exporter.guard_filter.answer_stride_questions():
            program = functionalize(raw)
    except Exception as error:
        frames.raise_from(
            error, "torch cannot functionalize the traced model", code="export", fallback=job.place("source")
        )
    return Exported(raw, program, guards, tuple(exporter.guard_filter.assumptions), tuple(exporter.ties))


@allow_data_dependent_sizes_below_two()
def functionalize(raw: ExportedProgram) -> ExportedProgram:
    """A functionalized copy of `raw` (rule 3), with the same symbols and tensors. Raises torch's errors."""
    program = decompose_without_retrace(raw) or _retrace(raw)
    write_default_dtype(program)
    return program


def _retrace(raw: ExportedProgram) -> ExportedProgram:
    """Call ``run_decompositions``, with a flat tuple as the result of `raw`.

    Otherwise torch creates instances of the classes of the result, and traces their `__post_init__` a second time."""
    signature = raw.module_call_graph[0].signature
    if signature is None:
        return raw.run_decompositions({})
    out_spec = signature.out_spec
    signature.out_spec = pytree.tree_structure((0,) * out_spec.num_leaves)
    try:
        program = raw.run_decompositions({})
    finally:
        signature.out_spec = out_spec
    result_signature = program.module_call_graph[0].signature
    if result_signature is None:
        raise AssertionError("a program has a signature")
    result_signature.out_spec = out_spec
    return program


class _Exporter:
    """Calls torch.export until it accepts the module, with ties (rule 6) and larger examples (rule 7).

    `job` and `guard_filter` are those of one call of torch.export: the call whose program the method `export` has returned,
    or whose error it has raised.
    """

    def __init__(self, module: torch.nn.Module, job: TraceJob, bound: inspect.BoundArguments, frames: Frames) -> None:
        self.ties: list[tuple[int, int]] = []
        self._module, self._declared_job, self._bound_arguments, self._frames = module, job, bound, frames
        self._set_job(job)

    def _set_job(self, job: TraceJob) -> None:
        self.job = job
        self.guard_filter = GuardFilter(
            job, arguments_as_input_numbers(self._bound_arguments.signature, job.inputs), self._frames
        )

    def export(self) -> ExportedProgram:
        """Export the module. Raises the errors of torch.export."""
        while True:
            try:
                return self._export()
            except Exception as error:
                found_violations = violations_in(error, self.job)
                ties = self._find_ties(found_violations)
                if not ties:
                    program = self._export_larger(found_violations)
                    if program is None:
                        raise
                    return program
                self.ties += ties
                self._set_job(self._declared_job.tied(self.ties))

    def _find_ties(self, found_violations: Sequence[Violation]) -> list[tuple[int, int]]:
        """The pairs of symbols that must be equal, by their numbers in the declared job. An empty list if the two symbols
        of a pair are not declared alike, because that is an error."""
        numbers = [*dict.fromkeys(kept_symbols(len(self._declared_job.shapes.symbols), self.ties))]
        pairs = [(numbers[v.symbol], numbers[v.equal_symbol]) for v in found_violations if v.equal_symbol is not None]
        return pairs if all(self._declared_job.alike(*pair) for pair in pairs) else []

    def _export_larger(self, found_violations: Sequence[Violation]) -> ExportedProgram | None:
        """Export with larger examples of the symbols that have a largest size (rule 7). None if this fails, too."""
        job, previous_filter = self.job, self.guard_filter
        limited = {violation.symbol for violation in found_violations if violation.largest_size is not None}
        for shapes in larger_examples(job.shapes, limited):
            self._set_job(replace(job, shapes=shapes))
            with contextlib.suppress(Exception):  # the error of the declared example is raised: the user can act on it
                return self._export()
        self.job, self.guard_filter = job, previous_filter
        return None

    def _export(self) -> ExportedProgram:
        job = self.job
        args, kwargs = call_arguments(job.inputs, example_tensors(job.inputs, job.shapes.example_shapes))
        kwargs = _order_keywords(self._module, self._bound_arguments.signature, kwargs)
        if any(symbol.max // symbol.multiple_of < LEAST_MAX for symbol in job.shapes.symbols):
            try:
                return self._export_up_to(LEAST_MAX, args, kwargs)
            except Exception as error:  # with the declared ranges, torch does not report that two sizes must be equal
                if self._find_ties(violations_in(error, job)):
                    raise
        return self._export_up_to(0, args, kwargs)

    def _export_up_to(self, least_max: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
        """Call torch.export with the Dims of `torch_dims`. If `least_max` is 0, they have the declared ranges."""
        dims = torch_dims(self.job.shapes, least_max)
        with _named_keywords(self._module, self._bound_arguments) as signature:
            dynamic = _dynamic_shapes(signature, self.job, dims)
            return self._call_torch(args, kwargs, dynamic)

    def _call_torch(self, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: dict[str, Any]) -> ExportedProgram:
        with self.guard_filter.patch_torch(sys._getframe()):
            return torch.export.export(self._module, args, kwargs, dynamic_shapes=dynamic, strict=False)


def larger_examples(plan: ShapePlan, limited: Collection[int]) -> Iterator[ShapePlan]:
    """Yield the plan with larger examples for the symbols `limited`, as far as their ranges and memory allow."""
    tried = {plan.example_shapes}
    # first about twice the example, then the largest size of the range
    for enlarge in (lambda value: 2 * value + 1, lambda value: sys.maxsize):
        symbols = tuple(
            replace(symbol, example=min(enlarge(symbol.example // symbol.multiple_of) * symbol.multiple_of, symbol.max))
            if number in limited
            else symbol
            for number, symbol in enumerate(plan.symbols)
        )
        larger = ShapePlan(symbols, plan.shapes)
        if larger.example_shapes not in tried and sum(map(math.prod, larger.example_shapes)) <= _MAX_EXAMPLE_ELEMENTS:
            tried.add(larger.example_shapes)
            yield larger


def torch_dims(plan: ShapePlan, least_max: int = 0) -> list[Any]:
    """Make one torch Dim for each symbol. Its range ends at `least_max` times ``multiple_of`` or later."""
    dims = []
    for number, symbol in enumerate(plan.symbols):
        multiple = symbol.multiple_of
        dim = Dim(torch_name(number), min=symbol.min // multiple, max=max(symbol.max // multiple, least_max))
        dims.append(multiple * dim if multiple > 1 else dim)
    return dims


def _order_keywords(module: torch.nn.Module, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return `kwargs` in the order that torch.export needs (rule 8)."""
    if not isinstance(module, torch.fx.GraphModule):
        return kwargs
    positions = {name: number for number, name in enumerate(signature.parameters)}
    return {name: kwargs[name] for name in sorted(kwargs, key=lambda name: positions.get(name, len(positions)))}


@contextlib.contextmanager
def _named_keywords(module: torch.nn.Module, bound: inspect.BoundArguments) -> Iterator[inspect.Signature]:
    """Inside the block, forward has a parameter for each input that it takes in ``**kwargs`` (rule 9). Yields the
    signature of forward."""
    parameters = list(bound.signature.parameters.values())
    has_keywords = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    names = list(bound.arguments.get(parameters[-1].name, ())) if has_keywords else []
    if not names:
        yield bound.signature
        return
    original, was_replaced = module.forward, "forward" in module.__dict__

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    signature = bound.signature.replace(parameters=[*parameters[:-1], *named])
    forward.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = forward
    try:
        yield signature
    finally:
        if was_replaced:
            module.forward = original
        else:
            del module.forward


def _dynamic_shapes(signature: inspect.Signature, job: TraceJob, dims: list[Any]) -> dict[str, Any]:
    """Parameter of forward → axis → its Dim. A parameter such as ``*args`` has a tuple with an entry for each tensor."""
    dims_of_inputs = [
        {number: dims[axis.symbol] for number, axis in enumerate(shape) if isinstance(axis, SymbolAxis)}
        for shape in job.shapes.shapes
    ]
    # pass the dims of each tensor to forward as if they were the tensor
    dim_args, dim_kwargs = call_arguments(job.inputs, dims_of_inputs)
    return dict(signature.bind(*dim_args, **dim_kwargs).arguments)
