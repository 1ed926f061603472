"""Call torch.export, and turn its refusals into errors with the manifest's inputs and dims.

Rules
1. All Dims are named, over the union of the profiles' ranges; ``Dim.AUTO`` would drop guards. A ``multiple_of`` is a
   derived dim.
2. A symbol at several axes is one Dim.
3. The result is functionalized (``run_decompositions({})``, or `decomposing`): only then are in-place writes to views
   gone, and mutated buffers visible.
4. The guards that export does not report are returned (`Exported.guards`). They are about derived dims, relations
   between dims, and sizes that are assumed not to be 1. `proof` tries the sizes that break them.
5. torch assumes that every dynamic size is 2 or more, so it replaces a dim whose range ends at 2 by a number. Such a
   dim is traced with a range up to `LEAST_MAX`. A model that does not allow this (it has a table of two rows) is traced
   as declared.
6. Keyword inputs of a program of torch.export must be in the program's order: torch.export reads them by position when
   it traces such a module again (2.13), although the module itself reads them by name.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from trtbuild.core.model.shapes import ShapePlan, SymbolAxis
from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.export.constraints import torch_name, violations
from trtbuild.stages.trace.export.decomposing import decomposed
from trtbuild.stages.trace.export.signature import bound_to_forward
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.advice import shape_advice, text_of, value_advice
from trtbuild.stages.trace.user_code.frames import Frames

#: The smallest upper end of a dim's range, in its unit (rule 5).
LEAST_MAX = 3


@dataclass
class Exported:
    """An exported module. `raw` is the result of torch.export, with stack traces; `program` is functionalized."""

    raw: ExportedProgram
    program: ExportedProgram
    guards: tuple[str, ...]


def export(module: torch.nn.Module, job: TraceJob, frames: Frames) -> Exported:
    """Trace `module` at the example shapes. Raises SourceError."""
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.example))
    arguments = bound_to_forward(module, job, args, kwargs, frames)
    kwargs = _in_order(module, arguments.signature, kwargs)
    try:
        raw = _export(module, arguments, job, args, kwargs)
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
        _raise_violations(error, job)
        raise_eager(module, job, frames)
        _raise_unknown_output(module, error, job, frames)
        frames.raise_from(error, "torch.export cannot trace the model", code="export", fallback=job.place("source"))
    guards = tuple(getattr(raw, "_guards_code", None) or ())
    try:
        program = functionalized(raw)
    except Exception as error:
        frames.raise_from(
            error, "torch cannot functionalize the traced model", code="export", fallback=job.place("source")
        )
    return Exported(raw, program, guards)


def functionalized(raw: ExportedProgram) -> ExportedProgram:
    """A functionalized copy of `raw` (rule 3), with the same symbols and tensors. Raises torch's errors."""
    return decomposed(raw) or raw.run_decompositions({})


def _export(
    module: torch.nn.Module, bound: inspect.BoundArguments, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    def export_up_to(least: int) -> ExportedProgram:
        dynamic = _dynamic_shapes(bound, job, args, kwargs, dims_of(job.shapes, least))
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)

    if any(symbol.max // symbol.multiple_of < LEAST_MAX for symbol in job.shapes.symbols):
        with contextlib.suppress(Exception):  # the error is raised for the declared ranges, below
            return export_up_to(LEAST_MAX)
    return export_up_to(0)


def dims_of(plan: ShapePlan, least: int = 0) -> list[Any]:
    """Make one torch Dim for each symbol (a derived one for ``multiple_of``). A range ends at `least` units or
    later."""
    found = []
    for number, symbol in enumerate(plan.symbols):
        unit = symbol.multiple_of
        dim = Dim(torch_name(number), min=symbol.min // unit, max=max(symbol.max // unit, least))
        found.append(unit * dim if unit > 1 else dim)
    return found


def _in_order(module: torch.nn.Module, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return `kwargs` in the order that torch.export needs (rule 6)."""
    if not isinstance(module, torch.fx.GraphModule):
        return kwargs
    places = {name: number for number, name in enumerate(signature.parameters)}
    return {name: kwargs[name] for name in sorted(kwargs, key=lambda name: places.get(name, len(places)))}


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
    """Raise the error of the model itself at the example, if it fails there. Its text has numbers instead of
    symbols."""
    shapes = job.shapes.example
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, shapes))
    try:
        module(*args, **kwargs)
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{entry.name} {list(shape)}" for entry, shape in zip(job.inputs, shapes, strict=True))
        frames.raise_from(
            error,
            f"the model itself fails at the example shapes: {shown}",
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


def _raise_violations(error: BaseException, job: TraceJob) -> None:
    if not isinstance(error, UserError | ConstraintViolationError | ValueError):
        return
    found = violations(text_of(error), job.shapes, job.inputs)
    if not found:
        return
    texts = [violation.text for violation in found]
    hints = list(dict.fromkeys(violation.hint for violation in found))
    raise SourceError("; ".join(texts), code="constraint", hint="; ".join(hints), **job.place(found[0].path)) from error
