"""Rewritten operators give the results of eager PyTorch. Calls that need no rewriting get no copies, casts or slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.core.model.spec import NamedDim
from trtbuild.stages.lower.operators.decompositions import _distances, _pool, _searchsorted
from trtbuild.stages.program.functional import Program

BATCH = (2, 3, 8)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("F.adaptive_avg_pool2d(x0, (5, 3))", [("float32", [2, 4, (8, 12, 16), 12])]),
        ("torch.cdist(x0, x0 * 2, p=3.0)", [("float32", [BATCH, 4, 6])]),
        ("torch.trunc(x0), x0.argmax(), torch.argmin(x0[0], 0, True)", [("int64", [BATCH, 6])]),
        ("x0[x1[0].clamp(0, 1), x1[1].clamp(0, 1).long()]", [("float32", [2, 6]), ("int32", [2, 5])]),
        ("(1.0 - x0) * -1e4, (1.5 - (x0 > 0).int()).exp(), torch.rsub(x0, 0.5, alpha=2)", [("int64", [BATCH, 6])]),
        ("(x0 ** (x0 / 4)).exp(), (x0 / 4) ** x0, x0 ** torch.tensor(0.5)", [("int64", [BATCH, 6])]),
        ("x0.scatter(1, torch.tensor([[2, 1]]), x0 + 1), *x0[:, 0].max(0, True)", [("float32", [BATCH, 6])]),
    ],
)
def test_the_whole_model_is_an_engine(body: str, inputs: Sequence[tuple[str, Any]]) -> None:
    case = ModuleCase(module_from_text([], body, len(inputs)), inputs)
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


def test_a_linear_interpolation_equals_eager_if_its_result_may_have_one_element() -> None:
    calls = ("size=x0.shape[2]", "size=2 * x0.shape[2]", "scale_factor=1.7, recompute_scale_factor=True")
    body = ", ".join(f"F.interpolate(x0, {call}, mode='linear', align_corners=True)" for call in calls)
    case = ModuleCase(module_from_text([], body, 1), [("float32", [2, 3, (1, 5, 8)])])
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


@pytest.mark.parametrize("right", [False, True])
def test_bucketize_equals_eager_for_every_number_of_boundaries(right: bool) -> None:
    body = f"torch.bucketize(x0, y, right={right}), torch.bucketize(x0[0, 0], y, out_int32=True)"
    module = module_from_text(["y = x1.abs().cumsum(0)"], body, 2)
    case = ModuleCase(module, [("int64", [2, 6]), ("int64", [(3, 5, 40)])])
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


@pytest.mark.parametrize(("count", "kinds"), [(6, ["tensorrt"]), ((3, 5, 40), ["tensorrt", "torch"])])
def test_searchsorted_equals_eager_for_every_number_of_boundaries(count: Any, kinds: list[str]) -> None:
    body = (
        "torch.searchsorted(y, x0), torch.searchsorted(y, x0, right=True, out_int32=True),"
        "torch.searchsorted(y[0], x0.unsqueeze(-1), side='right'), torch.searchsorted(y[0], x0[0, 0])"
    )
    module = module_from_text(["y = x1.abs().cumsum(-1)"], body, 2)
    case = ModuleCase(module, [("float32", [2, 6]), ("float32", [2, count])])
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == kinds
    assert not differences(case, built).differences


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("right", [False, True])
def test_a_search_takes_the_steps_of_eager_pytorch(count: int, right: bool) -> None:
    """The results are equal even for boundaries that are not sorted: the end of a row may be filled with zeros or NaN."""
    boundaries = torch.randn(3, count).sort(-1).values
    boundaries[1, count // 2 :], boundaries[2, count // 2 :] = 0, float("nan")
    values = torch.cat([torch.randn(3, 20), boundaries, torch.tensor([[0.0, float("inf"), float("nan")]] * 3)], -1)
    expected = torch.searchsorted(boundaries, values.contiguous(), right=right)
    assert torch.equal(_searchsorted(boundaries, values, right=right), expected)


def test_linspace_of_an_integer_dtype_casts_its_ends_first() -> None:
    calls = [
        "torch.linspace(x0[0, 0] - 2.7, 50, 20, dtype=torch.int64)",
        "torch.linspace(-2.7, x0[0, 0].abs() * 30, 20, dtype=torch.int64)",
        "torch.linspace(-2.7, 57.3, 20, dtype=torch.int64) + x0.shape[0]",
        "torch.linspace(-2, x0.shape[0] * 13, 20, dtype=torch.int64)",
        "torch.linspace(-2.7, 57.3, 20) + x0[0, 0], torch.linspace(x0[0, 0], 9.5, 7)",
    ]
    case = ModuleCase(module_from_text([], ", ".join(calls), 1), [("float32", [BATCH, 6])])
    assert not differences(case, build(case)).differences


def test_windows_that_tile_the_result_of_fold_are_in_the_engine() -> None:
    body = (
        "F.fold(x0, (2 * (x0.shape[2] // 4), 12), (2, 3), stride=(2, 3)),"
        "F.fold(x0[0], (4, 3 * (x0.shape[2] // 2)), (2, 3), stride=(2, 3))"
    )
    dims = (NamedDim("n", (("x0", 2),), multiple_of=4),)
    case = ModuleCase(module_from_text([], body, 1), [("float32", [2, 12, (4, 8, 24)])], dims=dims)
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


def test_windows_of_fold_that_overlap_stay_in_pytorch() -> None:
    case = ModuleCase(module_from_text([], "F.fold(x0, (4, 8), 2)", 1), [("float32", [2, 12, 21])])
    assert "torch" in [part.kind for part in build(case).partitions.partitions]


def test_isin_equals_eager_for_every_number_of_test_elements() -> None:
    body = "torch.isin(x0, x1), torch.isin(x0, x1[0], invert=True), torch.isin(x0[0, 0], x1, assume_unique=True)"
    case = ModuleCase(module_from_text([], body, 2), [("int64", [2, 6]), ("int64", [(3, 5, 40), 2])])
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


def test_adaptive_max_pooling_equals_eager_if_only_the_size_of_the_example_is_even() -> None:
    case = ModuleCase(module_from_text([], "F.adaptive_max_pool2d(x0, 2)", 1), [("float32", [2, 3, (4, 8, 40), 6])])
    built = build(case)
    assert not differences(case, built).differences


def test_a_result_of_adaptive_pooling_depends_on_its_own_elements_only() -> None:
    x = torch.tensor([[1.0, 2.0, float("inf"), 4.0, 5.0, float("nan"), 7.0]])[None]
    torch.testing.assert_close(_pool(x, [3]), torch.nn.functional.adaptive_avg_pool1d(x, 3), equal_nan=True)


@pytest.mark.parametrize("size", range(1, 12))
def test_adaptive_pooling_equals_eager_at_every_size(size: int) -> None:
    x = torch.randn(2, 3, size, 7, 4)
    torch.testing.assert_close(_pool(x, [3, 5, 4]), torch.nn.functional.adaptive_avg_pool3d(x, (3, 5, 4)))


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_distances_equal_eager_in_each_compute_mode(mode: int | None) -> None:
    x, y = torch.randn(2, 40, 6), torch.randn(1, 3, 6)
    torch.testing.assert_close(_distances(x, y, 2.0, mode), torch.ops.aten._cdist_forward(x, y, 2.0, mode))


@pytest.mark.parametrize(
    "body",
    [
        "x0.floor()",
        "x0.argmax(1)",
        "x0[:, torch.tensor([0, 2, 1, 3])]",
        "x0.scatter(1, torch.tensor([[0, 2]] * 3).repeat(1, 3), x0)",
    ],
)
def test_calls_that_need_no_rewriting_get_no_copies_casts_or_slices(body: str) -> None:
    built = build(ModuleCase(module_from_text([], body, 1), [("float32", [3, 6])]), engines=False)
    (part,) = built.partitions.partitions
    program = Program.from_bytes(built.store.get_bytes(built.programs[part.graph]))
    calls = {node.target for node in program.graph.nodes if node.op == "call_function"}
    aten = torch.ops.aten
    assert not calls & {aten._to_copy.default, aten.slice.Tensor, aten.reshape.default, aten.clone.default}
