"""A lowered program computes what the traced one does: by numbers, at small sizes, while it is lowered.

Rules
1. Both are run once, on the same inputs. A difference of `TIMES` the tolerance of `trtbuild verify` is no rounding: the
   passes have made another model. What is less is left to `trtbuild verify`.
2. Every value inside the lowered program has the dtype and sizes that torch says it has. Where an operator gives another
   type, the model gets the error if its traced program shows the same; otherwise a pass is at fault.
3. A number that half precision cannot hold is the model's: the error names the other precisions.
4. Where the traced program itself fails on random inputs nothing is compared.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import coarsest, tolerances
from trtbuild.errors import InconsistentShapes, SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import At, Point, shown
from trtbuild.stages.program.text import target_name
from trtbuild.stages.verify.comparing import gap
from trtbuild.stages.verify.precisions import of_outputs
from trtbuild.stages.verify.running import Torch, arguments

#: How many times the tolerance is no rounding any more.
TIMES = 10


@dataclass(frozen=True)
class Compared:
    """Where two programs are compared: a name for messages, the point, and inputs of its sizes."""

    name: str
    point: Point
    inputs: Sequence[torch.Tensor]


def refuse_another_model(
    traced: Program, lowered: Program, weights: Sequence[torch.Tensor], at: Compared, precision: Precision
) -> None:
    """Raise InconsistentShapes where `lowered` does not compute what `traced` does.

    SourceError has the code ``precision`` (rule 3), or ``wrong-type`` for an operator that torch says a wrong type of.
    """
    try:
        wanted = Torch.whole(traced, weights, at.inputs)
    except Exception:  # rule 4
        return
    try:
        found = _run(lowered, weights, at)
    except _WrongType as error:
        if not _gives_wrong_type(error.operator, traced, weights, at):
            raise InconsistentShapes(f"after lower, {error.text}") from error
        raise SourceError(
            error.text,
            code="wrong-type",
            hint="compute it in another way: PyTorch is wrong about the type or the sizes of what this operator gives",
        ) from error
    allowed = tolerances("onnxruntime")
    for number, (ours, theirs, own) in enumerate(zip(found, wanted, of_outputs(traced), strict=True)):
        far = gap(ours, theirs)
        if far.error <= TIMES * allowed[coarsest([precision, own])]:
            continue
        said = far.text or f"a relative difference of {far.error:.1e}"
        if precision != "float32":
            range_ = "bfloat16, which has the range of float32, or " if precision == "float16" else ""
            raise SourceError(
                f"output {number} of the model is different in {precision}: {said}, at {at.name}",
                code="precision",
                hint=f"set precision: {range_}float32",
            )
        raise InconsistentShapes(
            f"the lowered program computes something else: output {number} has {said} at {at.name}"
        )


def _gives_wrong_type(operator: Any, traced: Program, weights: Sequence[torch.Tensor], at: Compared) -> bool:
    """Whether the operator already gives another type than torch says in the traced program: then no pass is to blame."""
    try:
        _run(traced, weights, at)
    except _WrongType as error:
        return error.operator is operator
    return False


class _WrongType(Exception):
    """`operator` gives another type or other sizes than torch says. `text` is the message: an interpreter adds to it."""

    def __init__(self, text: str, operator: Any) -> None:
        super().__init__(text)
        self.text = text
        self.operator = operator


def _run(program: Program, weights: Sequence[torch.Tensor], compared: Compared) -> list[torch.Tensor]:
    """The results of a program whose values are looked at one by one (rule 2)."""
    at = At(compared.point)

    class Looking(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if n.op == "call_function" and isinstance(result, torch.Tensor):
                _look(n, result, at)
            return result

    with torch.no_grad():
        found = Looking(program.exported.graph_module).run(*arguments(program, weights, compared.inputs))
    return list(found)


def _look(node: torch.fx.Node, result: torch.Tensor, at: At) -> None:
    ((dtype, sizes),) = at.said(node.meta["val"])
    is_shaped = len(sizes) == result.dim() and all(
        said is None or said == size for said, size in zip(sizes, result.shape, strict=True)
    )
    if dtype != result.dtype or not is_shaped:
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        raise _WrongType(
            f"{target_name(call.target)} gives {shown([(result.dtype, tuple(result.shape))])}, and PyTorch says that it "
            f"gives {shown([(dtype, sizes)])}",
            call.target,
        )
