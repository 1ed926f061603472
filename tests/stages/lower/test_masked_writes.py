"""A write of one value to the elements that a mask selects is part of an engine, and equals eager."""

from __future__ import annotations

import pytest

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.core.model.spec import NamedDim

X, MASK = ("float32", [(2, 3, 8), 4, 6]), ("bool", [(2, 3, 8), 4])
BATCH = NamedDim("batch", (("x0", 0), ("x1", 0)))


@pytest.mark.parametrize(
    "body",
    [
        "x0.index_put((x1,), torch.tensor(2.0)).exp()",
        "x0.exp().index_put(torch.where(x1), torch.tensor(-1.0))",
        "x0.index_put((x1,), torch.arange(6.0)) + x0.index_put((x1,), torch.arange(6.0)[None])",
        "x0.index_put((x0 > 0.5,), torch.zeros(1)), x0.index_put((x1[:, 0],), x0[0])",
        "torch.ops.aten.index_put(x0.transpose(0, 1), [None, x1[:, 1]], torch.tensor(0.25))",
        "x1.index_put(((x1.sum(-1) == 4).nonzero(as_tuple=True)), torch.tensor(False))",
    ],
)
def test_a_model_that_writes_one_value_to_a_mask_is_an_engine(body: str) -> None:
    case = ModuleCase(module_from_text([], body, 2), [X, MASK], dims=(BATCH,))
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    comparison = differences(case, built)
    assert not comparison.differences and not comparison.unchecked


@pytest.mark.parametrize(
    "body",
    [
        "x0.index_put((x1,), torch.ones(6), accumulate=True)",
        "x0.index_put((x1,), x0[x1] + 1)",
        "x0.index_put(torch.where(x1)[:1], torch.tensor(0.0))",
        "x0.index_put((x1, torch.tensor(2)), torch.tensor(0.0))",
    ],
)
def test_another_write_to_a_mask_equals_eager(body: str) -> None:
    case = ModuleCase(module_from_text([], body, 2), [X, MASK], dims=(BATCH,))
    assert not differences(case, build(case)).differences


def test_indices_of_a_mask_with_an_axis_between_them_equal_eager() -> None:
    body = "torch.ops.aten.index_put(x0, [torch.where(x1)[0], None, torch.where(x1)[1]], torch.tensor(0.0))"
    case = ModuleCase(module_from_text([], body, 2), [("float32", (4, 4, 4)), ("bool", (4, 4))])
    assert not differences(case, build(case, engines=False)).differences
