"""Compare the results of a lowered program with those of the traced program, at small sizes, during the lower step.

Rules
1. Both programs run on the same inputs. Rounding cannot explain a difference of more than `MAX_TOLERANCES` times the
   tolerance of ``trtbuild verify`` (which is limited to `_LARGEST_TOLERANCE` here). In float32, such a difference proves
   that a graph pass is wrong. Values that rounding decides (`rounding`) are not compared.
2. Each value inside the lowered program must have the dtype and sizes that torch declares. If an operator returns another
   type in the traced program, too, the error is about the model. Otherwise a pass is wrong.
3. The tolerance of an output follows from the types of all values from which either program computes the output. If the
   manifest sets a lower precision than float32, and an output of lower precision differs as much as in rule 1, the error is
   about the model: this precision cannot represent a number of the model. The hint names other precisions.
4. If the traced program itself fails on random inputs, nothing is compared.
5. In the lowered program, matrix products and convolutions of half-precision values are computed in float32 and then
   rounded, as on a GPU. The CPU's kernels for half precision are several times slower.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.core.model.precisions import Precisions
from trtbuild.core.model.verification import coarsest_precision, tolerances
from trtbuild.errors import InconsistentShapes, SourceError
from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Point, PointEvaluator, types_text
from trtbuild.stages.program.text import target_name
from trtbuild.stages.verify.precisions import output_precisions
from trtbuild.stages.verify.rounding import MAX_TOLERANCES, PerturbedRuns, deviations
from trtbuild.stages.verify.running import OrderedInterpreter, TorchReference, placeholder_values

_aten = torch.ops.aten
_PRODUCTS = frozenset(
    (_aten.linear.default, _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)
) | frozenset(
    (_aten.matmul.default, _aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.convolution.default)
)
#: The upper limit of the tolerances. Those of float8 and of 4-bit types would be larger, because they are for the results
#: of two libraries. Here one library runs both programs, so the results differ less. With this limit, `MAX_TOLERANCES`
#: times the tolerance is at most half of the largest value.
_LARGEST_TOLERANCE = 5e-2


@dataclass(frozen=True)
class ComparisonPoint:
    """A point (the sizes of a comparison), its name for messages, and inputs with these sizes."""

    name: str
    point: Point
    inputs: Sequence[torch.Tensor]


def refuse_another_model(
    traced: Program,
    lowered: Program,
    weights: Sequence[torch.Tensor],
    comparison: ComparisonPoint,
    precisions: Precisions,
) -> None:
    """Raise InconsistentShapes if `lowered` and `traced` give different results, or if `lowered` fails with an
    ArithmeticError or has a value of another type than declared (rule 2).

    If the output has a lower precision because of `precisions`, the manifest's precisions, a SourceError with the code
    ``precision`` is raised instead (rule 3). An operator whose declared type is wrong in `traced`, too, raises a
    SourceError with the code ``wrong-type``.
    """
    try:
        expected = TorchReference.run_program(traced, weights, comparison.inputs)
    except Exception:  # rule 4
        return
    try:
        actual = _run_checked(lowered, weights, comparison)
    except _WrongType as error:
        if not _returns_wrong_type(error.operator, traced, weights, comparison):
            raise InconsistentShapes(f"after lower, {error.text}") from error
        raise SourceError(
            error.text,
            code="wrong-type",
            hint="use another operator: PyTorch declares a wrong type or wrong sizes for the result of this one",
        ) from error
    except ArithmeticError as error:  # for example, `lowered` divides by a size minus 1, and `traced` does not
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InconsistentShapes(f"the lowered program fails at {comparison.name}: {reason}") from error
    tolerance_of = tolerances("onnxruntime")
    before, after = output_precisions(traced), output_precisions(lowered)
    allowed = [
        min(tolerance_of[coarsest_precision(pair)], _LARGEST_TOLERANCE) for pair in zip(before, after, strict=True)
    ]
    perturbed_runs = PerturbedRuns(
        lambda inputs, weights: TorchReference.run_program(traced, weights, inputs), comparison.inputs, weights
    )
    for number, deviation in enumerate(deviations(actual, expected, allowed, perturbed_runs, times=MAX_TOLERANCES)):
        if deviation.error <= MAX_TOLERANCES * allowed[number]:
            continue
        difference = deviation.text or f"a relative difference of {deviation.error:.1e}"
        if after[number] != "float32" and precisions.names != ("float32",):
            raise SourceError(
                f"output {number} of the model is different in {after[number]}: {difference}, at {comparison.name}",
                code="precision",
                hint=_advice(precisions, after[number]),
            )
        raise InconsistentShapes(
            f"the lowered program gives other results: output {number} has {difference} at {comparison.name}"
        )


def _advice(precisions: Precisions, precision: str) -> str:
    range_ = "bfloat16, which has the range of float32, or " if precision == "float16" else ""
    if not precisions.modules:
        return f"set precision: {range_}float32"
    return (
        f"compute more modules in {range_}float32: `trtbuild inspect --precision` shows what is computed in which type"
    )


def _returns_wrong_type(
    operator: Any, traced: Program, weights: Sequence[torch.Tensor], comparison: ComparisonPoint
) -> bool:
    """Whether this operator is also the first one in the traced program whose result has a wrong type (rule 2)."""
    try:
        _run_checked(traced, weights, comparison)
    except _WrongType as error:
        return error.operator is operator
    return False


class _WrongType(Exception):
    """`operator` returns another type or other sizes than torch declares.

    `text` is the message without the text that torch's interpreter adds."""

    def __init__(self, text: str, operator: Any) -> None:
        super().__init__(text)
        self.text = text
        self.operator = operator


def _run_checked(program: Program, weights: Sequence[torch.Tensor], comparison: ComparisonPoint) -> list[torch.Tensor]:
    """Return the results of a program, and check the type of each value (rule 2)."""
    evaluator = PointEvaluator(comparison.point)

    class Checking(OrderedInterpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            operands = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            if target not in _PRODUCTS or not all(value.dtype == operands[0].dtype in HALF_TYPES for value in operands):
                return super().call_function(target, args, kwargs)
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.float, (args, kwargs))
            return super().call_function(target, args, kwargs).to(operands[0].dtype)

        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if n.op == "call_function" and isinstance(result, torch.Tensor):
                _check_type(n, result, evaluator)
            return result

    with torch.no_grad():
        results = Checking(program.exported.graph_module).run(*placeholder_values(program, weights, comparison.inputs))
    return list(results)


def _check_type(node: torch.fx.Node, result: torch.Tensor, evaluator: PointEvaluator) -> None:
    ((dtype, sizes),) = evaluator.declared(node.meta["val"])
    has_declared_sizes = len(sizes) == result.dim() and all(
        declared_size is None or declared_size == size for declared_size, size in zip(sizes, result.shape, strict=True)
    )
    if dtype != result.dtype or not has_declared_sizes:
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        raise _WrongType(
            f"{target_name(call.target)} gives {types_text([(result.dtype, tuple(result.shape))])}, but PyTorch declares "
            f"{types_text([(dtype, sizes)])}",
            call.target,
        )
