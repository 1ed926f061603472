"""Results that are finite in PyTorch stay finite, although the exporter's translation alone would overflow."""

from __future__ import annotations

import pytest

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.stages.lower.passes import PASSES


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("torch.linalg.vector_norm(x0 * 60, 4, -1)", "float16"),
        ("torch.linalg.vector_norm(x0 * 300, 3, keepdim=True) * x0", "float16"),
        ("F.normalize(x0 * 200, dim=-1)", "float16"),
        ("torch.dist(x0 * 60, x0 * -60, 4)", "bfloat16"),
        ("torch.linalg.vector_norm(x0, float('inf'))", "float16"),
        ("torch.logaddexp(x0 * 100, x0 * 100)", "float32"),
        ("torch.logaddexp2(x0 * 300, x0 * 300)", "float32"),
    ],
)
def test_large_values_stay_finite(body: str, dtype: str) -> None:
    case = ModuleCase(module_from_text([], body, 1), [(dtype, [(1, 2, 3), 16])])
    assert not differences(case, build(case)).differences


def test_without_the_pass_the_norm_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    without = tuple(step for step in PASSES if step.name != "sum-norms-in-float32")
    assert len(without) == len(PASSES) - 1
    monkeypatch.setattr("trtbuild.stages.lower.run.PASSES", without)
    case = ModuleCase(
        module_from_text([], "torch.linalg.vector_norm(x0 * 60, 4, -1)", 1), [("float16", [(1, 2, 3), 16])]
    )
    assert "infinite" in str(differences(case, build(case)).differences)
