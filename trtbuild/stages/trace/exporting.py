"""Calling torch.export, and turning what it refuses into an error that names the manifest's inputs and dims.

Rules
1. Named Dims only, over the union of the profiles' ranges; ``Dim.AUTO`` drops guards. A ``multiple_of`` is a derived dim.
2. A symbol that stands at several axes is one Dim.
3. The result is functionalized (``run_decompositions({})``): before that, in-place writes to views are still in the
   graph and mutated buffers do not show.
4. The guards that export took and kept to itself are handed on (`Exported.guards`): derived dims, relations between dims
   and size-1 assumptions are not reported as violations, so `proof` tries the sizes that break them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from trtbuild.core.shapes import ShapePlan, SymbolAxis
from trtbuild.errors import SourceError
from trtbuild.stages.trace.constraints import torch_name, violations
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.frames import Frames
from trtbuild.stages.trace.job import TraceJob


@dataclass
class Exported:
    """`raw` is as torch.export left it (its nodes have stack traces), `program` is functionalized."""

    raw: ExportedProgram
    program: ExportedProgram
    guards: tuple[str, ...]


def export(module: torch.nn.Module, job: TraceJob, frames: Frames) -> Exported:
    """Trace `module` at the example shapes. Raises SourceError."""
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.example))
    arguments = _bound(module, job, args, kwargs)
    dynamic = _dynamic_shapes(arguments, job, args, kwargs)
    try:
        raw = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
    except GuardOnDataDependentSymNode as error:
        frames.raise_from(
            error,
            "the model's control flow or a size in it depends on the values of a tensor, which a static graph cannot hold",
            code="data-dependent",
            hint="use torch.where or torch.cond instead of `if`, and sizes that follow from shapes",
            fallback=job.place("source"),
        )
    except Exception as error:
        _raise_violations(error, job)
        _raise_eager(module, job, frames)
        frames.raise_from(error, "torch.export cannot trace the model", code="export", fallback=job.place("source"))
    guards = tuple(getattr(raw, "_guards_code", None) or ())
    try:
        program = raw.run_decompositions({})
    except Exception as error:
        frames.raise_from(
            error, "torch cannot functionalize the traced model", code="export", fallback=job.place("source")
        )
    return Exported(raw, program, guards)


def dims_of(plan: ShapePlan) -> list[Any]:
    """One torch Dim (or a derived one, for ``multiple_of``) for each symbol."""
    found = []
    for number, symbol in enumerate(plan.symbols):
        unit = symbol.multiple_of
        dim = Dim(torch_name(number), min=symbol.min // unit, max=symbol.max // unit)
        found.append(unit * dim if unit > 1 else dim)
    return found


def _bound(
    module: torch.nn.Module, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(module.forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        positional = ", ".join(entry.name for entry in job.inputs if not entry.keyword)
        keywords = ", ".join(f"{entry.name}=" for entry in job.inputs if entry.keyword)
        called = ", ".join(part for part in (positional, keywords) if part)
        parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        takes = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        raise SourceError(
            f"the manifest's inputs do not fit the model's forward: it is called with ({called}) and takes "
            f"{takes}: {error}",
            code="signature",
            hint="inputs are passed in the manifest's order; `keyword: true` passes one by its name",
            **job.place("inputs", *(f"inputs.{entry.name}" for entry in job.inputs)),
        ) from None


def _dynamic_shapes(
    bound: inspect.BoundArguments, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The dims of each argument, in the structure in which forward receives them."""
    dims = dims_of(job.shapes)
    per_input = [
        {number: dims[axis.symbol] for number, axis in enumerate(shape) if isinstance(axis, SymbolAxis)}
        for shape in job.shapes.shapes
    ]
    # bind once more, with each tensor's dims in the tensor's place
    dim_args, dim_kwargs = call_arguments(job.inputs, per_input)
    rebound = bound.signature.bind(*dim_args, **dim_kwargs)
    return dict(rebound.arguments)


def _raise_eager(module: torch.nn.Module, job: TraceJob, frames: Frames) -> None:
    """Raise what the model itself raises at the example: it speaks of numbers, where export speaks of symbols."""
    shapes = job.shapes.example
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, shapes))
    try:
        module(*args, **kwargs)
    except Exception as error:
        shown = ", ".join(f"{entry.name} {list(shape)}" for entry, shape in zip(job.inputs, shapes, strict=True))
        frames.raise_from(
            error,
            f"the model itself fails at the example shapes: {shown}",
            code="eager",
            hint="the first profile's opt is the example; sizes that must be equal need one name in dims",
            fallback=job.place("source"),
        )


def _raise_violations(error: Exception, job: TraceJob) -> None:
    if not isinstance(error, UserError | ConstraintViolationError | ValueError):
        return
    found = violations(str(error), job.shapes, job.inputs)
    if not found:
        return
    texts = [violation.text for violation in found]
    hints = list(dict.fromkeys(violation.hint for violation in found))
    raise SourceError("; ".join(texts), code="constraint", hint="; ".join(hints), **job.place(found[0].path)) from error
