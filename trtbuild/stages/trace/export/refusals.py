"""Turn errors of torch.export into errors that name the manifest's inputs and dims, or a line of user code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch._dynamo.exc import UserError
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.constraints import Violation, parse_violations
from trtbuild.stages.trace.export.custom_operators import raise_missing_fake
from trtbuild.stages.trace.export.guards.guard_filter import CodeLine
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.advice import PYTHON_SOURCE_HINT, error_text, shape_advice, value_advice
from trtbuild.stages.trace.user_code.frames import Frames


def raise_violations(error: BaseException, job: TraceJob, places: Mapping[int, CodeLine]) -> None:
    """If `error` reports violations, raise SourceError with a line of the manifest, or of user code.

    `places` maps the number of a symbol to the line of user code that restricts it."""
    found_violations = violations_in(error, job)
    if not found_violations:
        return
    texts = [violation.text for violation in found_violations]
    hints = list(dict.fromkeys(violation.hint for violation in found_violations))
    declared = job.place(found_violations[0].path)
    # if two dims must be equal, the line to change is in the manifest
    place = next((places[v.symbol] for v in found_violations if v.equal_symbol is None and v.symbol in places), None)
    if place is None:
        raise SourceError("; ".join(texts), code="constraint", hint="; ".join(hints), **declared) from error
    if declared:
        hints.append(f"the size is declared at {declared['file']}:{declared['line']}")
    raise SourceError(
        "; ".join(texts), code="constraint", hint="; ".join(hints), file=place[0], line=place[1]
    ) from error


def violations_in(error: BaseException, job: TraceJob) -> list[Violation]:
    """The violations that an error of torch.export reports."""
    if not isinstance(error, UserError | ConstraintViolationError | ValueError):
        return []
    return parse_violations(error_text(error), job.shapes, job.inputs)


def raise_refusal(error: BaseException, module: torch.nn.Module, job: TraceJob, frames: Frames) -> NoReturn:
    """Raise SourceError for an error of torch.export that reports no violations."""
    if isinstance(error, GuardOnDataDependentSymNode):
        frames.raise_from(
            error,
            "the model's control flow or a size in it depends on the values of a tensor, which a static graph cannot hold",
            code="data-dependent",
            hint="write the branch with torch.where or torch.cond, and let sizes follow from shapes",
            fallback=job.place("source"),
            hides_error_text=True,
        )
    raise_missing_fake(error, job, frames)
    raise_model_error(module, job, frames)
    _raise_unknown_output(module, error, job, frames)
    _raise_resize_error(error, job, frames)
    frames.raise_from(
        error,
        "torch.export cannot trace the model",
        code="export",
        # for TorchScript, PyTorch's converter may have made a graph that cannot run
        hint=PYTHON_SOURCE_HINT if job.source.kind == "torchscript" else None,
        fallback=job.place("source"),
    )


def raise_model_error(module: torch.nn.Module, job: TraceJob, frames: Frames) -> None:
    """Call the model at the example shapes, and raise SourceError if it fails. The error has the sizes as numbers, not as
    symbols of torch."""
    shapes = job.shapes.example_shapes
    args, kwargs = call_arguments(job.inputs, example_tensors(job.inputs, shapes))
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
                or "these shapes are the opt of the first profile (sizes that torch.export cannot trace, such as 1, are "
                "replaced by larger ones): correct the profiles, or the model",
            ),
            fallback=job.place("source"),
        )


def _raise_unknown_output(module: torch.nn.Module, error: BaseException, job: TraceJob, frames: Frames) -> None:
    match = re.search(r"Found <class '(?:builtins\.)?([^']+)'> in output, which is not a known type", error_text(error))
    if match:
        raise SourceError(
            f"the model returns a value of type {match[1]}, which is neither a tensor nor a plain constant",
            code="output",
            hint="return tensors, in tuples, lists, dicts or registered dataclasses",
            **(frames.definition_place(module.forward) or job.place("source")),
        ) from error


def _raise_resize_error(error: BaseException, job: TraceJob, frames: Frames) -> None:
    if "directly modify sizes" in error_text(error):
        frames.raise_from(
            error,
            "torch.export cannot trace an operator that resizes a tensor with dynamic sizes in place (aten.resize_)",
            code="export",
            hint="use slicing and reshape, or make the sizes static",
            fallback=job.place("source"),
            hides_error_text=True,
        )
