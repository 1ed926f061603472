"""Reject a call of an operator from outside PyTorch if the call cannot become a partition.

1. An operator that writes to its arguments is rejected, because no partition may change a value of another partition.
2. An operator that returns a number or a view is rejected, because the number would become a fixed part of the graph, and
   the view would share memory with a value of another partition.
3. A call inside a nested graph (``torch.cond``) is rejected, because only calls of the main graph become partitions.
4. A fake implementation computes the sizes of an operator's results. An operator without a fake implementation cannot be
   exported. The error names the function that registers one.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.program.custom_calls import checked_copy
from trtbuild.stages.program.custom_operators import is_custom
from trtbuild.stages.program.functional import Program
from trtbuild.stages.trace.export.checks import call_nodes
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.advice import error_text
from trtbuild.stages.trace.user_code.frames import Frames

_NO_FAKE_TEXT = re.compile(r"no fake impl|no Meta kernel|register_fake|Please register a fake", re.IGNORECASE)
_OPERATOR_NAME = re.compile(r"\b([A-Za-z_]\w*)(?:::|\.)([A-Za-z_]\w*)(?:\.\w+)?")


def refuse_custom_calls(exported: ExportedProgram, job: TraceJob, frames: Frames) -> None:
    """Raise SourceError for the first call under rules 1 to 3. `exported` still has its stack traces."""
    main_nodes = set(exported.graph_module.graph.nodes)
    for node in call_nodes(exported.graph_module):
        if not is_custom(node.target):
            continue
        schema = node.target._schema
        if schema.is_mutable:
            written = [entry.name for entry in schema.arguments if entry.alias_info and entry.alias_info.is_write]
            problem = f"writes to its argument {', '.join(written)}"
            code, hint = "mutating-operator", "let the operator return a new tensor: mutates_args=()"
        elif any(str(returned.type) not in ("Tensor", "List[Tensor]") for returned in schema.returns):
            problem = f"returns {', '.join(str(returned.type) for returned in schema.returns)}"
            code, hint = "operator-result", "return tensors only: a number as a tensor without axes"
        elif any(returned.alias_info for returned in schema.returns):
            problem = "returns a view of its argument"
            code, hint = "operator-result", "return a new tensor: `.clone()`"
        elif node not in main_nodes:
            problem = "is called inside a nested graph, such as a branch of torch.cond"
            code, hint = "operator-in-branch", "call it outside of the branch"
        else:
            continue
        place = frames.place_in_stack_trace(node.meta.get("stack_trace"))
        where = {"file": place[0], "line": place[1]} if place else job.place("source")
        raise SourceError(f"the operator {schema.name} {problem}", code=code, hint=hint, **where)


def checked_program(program: Program, job: TraceJob) -> Program:
    """A copy of `program` that checks the sizes of the results of operators from outside PyTorch, or `program` itself if it
    calls no such operator.

    Raises SourceError if an argument of such an operator is a computed number that is not a size. Also if a list or tuple
    that such an operator returns is passed as a whole to another operator."""
    try:
        return checked_copy(program)
    except ConversionRefused as error:
        raise SourceError(error.text, code="operator-argument", hint=error.hint, **job.place("source")) from error


def raise_missing_fake(error: BaseException, job: TraceJob, frames: Frames) -> None:
    """Raise SourceError if torch.export has failed because an operator has no fake implementation (rule 4)."""
    text = error_text(error)
    if not _NO_FAKE_TEXT.search(text):
        return
    names = (
        f"{namespace}::{operator}"
        for namespace, operator in _OPERATOR_NAME.findall(text)
        if _is_custom_name(namespace, operator)
    )
    name = next(names, None)
    if name is None:
        return
    frames.raise_from(
        error,
        f"the operator {name} has no fake implementation, which says what sizes its results have",
        code="no-fake-implementation",
        hint=f'register one: @torch.library.register_fake("{name}")',
        fallback=job.place("source"),
        hides_error_text=True,
    )


def _is_custom_name(namespace: str, operator: str) -> bool:
    packet: Any = getattr(getattr(torch.ops, namespace, None), operator, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    return any(is_custom(getattr(packet, overload)) for overload in packet.overloads())
