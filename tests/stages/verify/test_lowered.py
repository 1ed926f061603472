"""The lower step compares the results of the lowered program with those of the traced program."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.core.model.precisions import ModulePrecision, Precisions
from trtbuild.errors import InconsistentShapes, SourceError
from trtbuild.stages.lower import run as lowering
from trtbuild.stages.lower.operators.decompositions import DECOMPOSITIONS
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.sizes import points_of
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.verify.lowered import ComparisonPoint, refuse_another_model


def case(body: str, precision: str = "float32") -> ModuleCase:
    return ModuleCase(module_from_text([], body, 1), [("float32", [(1, 3, 8), 4])], precision=precision)  # type: ignore[arg-type]


def swap_operator(monkeypatch: pytest.MonkeyPatch, old: Any, new: Any, arguments_kept: int | None = None) -> None:
    """Add a pass that replaces the operator `old` by `new`. By default, calls keep all their arguments."""
    run_passes = lowering.run_passes

    def passes(*arguments: Any) -> Program:
        program = run_passes(*arguments)
        for node in program.graph.nodes:
            if node.target is old:
                node.target, node.args = new, node.args[:arguments_kept]
        program.exported.graph_module.recompile()
        return program

    monkeypatch.setattr(lowering, "run_passes", passes)


def test_rejects_a_pass_that_changes_results(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_operator(monkeypatch, torch.ops.aten.sin.default, torch.ops.aten.cos.default)
    with pytest.raises(InconsistentShapes, match="gives other results: output 0 has a relative difference"):
        build(case("x0.sin() * 2"))


def test_rejects_a_pass_that_is_right_at_the_smallest_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_operator(monkeypatch, torch.ops.aten.flip.default, torch.ops.aten.clone.default, 1)
    with pytest.raises(InconsistentShapes, match=r"other results: output 0 has .* at sizes a step above its smallest"):
        build(case("x0.flip(0) * 2"))


def test_an_overflow_in_half_precision_is_an_error_of_the_model() -> None:
    with pytest.raises(SourceError, match="output 0 of the model is different in float16") as caught:
        build(case("(x0.abs() * 1000 + 1) @ torch.eye(4) * 100 @ torch.eye(4) - x0", "float16"))
    assert caught.value.code == "precision"
    assert caught.value.hint == "set precision: bfloat16, which has the range of float32, or float32"


def test_each_output_has_the_tolerance_of_the_types_that_it_is_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relative error 0.001 exceeds the tolerance of float32, but not that of float16."""

    class TwoLayers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.exact, self.coarse = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.exact(x) * 2.0, self.coarse(x) * 4.0

    torch.manual_seed(0)
    module, x = TwoLayers().eval(), torch.randn(3, 4)
    program, slots = functional(torch.export.export(module, (x,)).run_decompositions({}))
    weights = [dict(module.named_parameters())[slot.name].detach() for slot in slots]
    comparison = ComparisonPoint("here", points_of(program, [()])[0], [x])

    def compare_after_change(factor: float, by: float = 1.001) -> None:
        """Multiply the factor of one output by `by` in the lowered program, and compare the programs."""
        precisions = Precisions("float16", (ModulePrecision("exact", "float32"),))
        lowered = lowering.lower(program, precisions, decomposition_table())
        (node,) = [n for n in lowered.graph.nodes if n.target is torch.ops.aten.mul.Tensor and n.args[1] == factor]
        node.args = (node.args[0], factor * by)
        lowered.exported.graph_module.recompile()
        refuse_another_model(program, lowered, weights, comparison, precisions)

    compare_after_change(4.0)
    with pytest.raises(InconsistentShapes, match="output 0 has a relative difference"):
        compare_after_change(2.0)
    with pytest.raises(SourceError, match="output 1 of the model is different in float16") as caught:
        compare_after_change(4.0, by=1.5)
    assert "compute more modules in bfloat16, which has the range of float32, or float32" in (caught.value.hint or "")


def test_rejects_an_operator_whose_type_torch_infers_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """If `copysign` is decomposed, the sign bit gets a wrong type."""
    monkeypatch.setattr("trtbuild.stages.program.translations._NEVER_DECOMPOSED", frozenset())
    decomposition_table.cache_clear()
    try:
        with pytest.raises(InconsistentShapes, match=r"prims\.signbit\.default gives bool\[1, 4\]"):
            build(case("torch.copysign(x0, -x0)"))
    finally:
        decomposition_table.cache_clear()


def test_rejects_a_lowered_program_that_divides_by_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one column, the result has one column. PyTorch's own decomposition divides by the number of columns minus 1."""
    monkeypatch.delitem(cast(dict[Any, Any], DECOMPOSITIONS), torch.ops.aten.upsample_linear1d.vec)
    scale = "scale_factor=1.7, mode='linear', align_corners=True, recompute_scale_factor=True"
    module = module_from_text([], f"F.interpolate(x0, {scale})", 1)
    with pytest.raises(InconsistentShapes, match="fails at its smallest sizes: float division by zero"):
        build(ModuleCase(module, [("float32", [2, 3, (1, 4, 9)])]))
