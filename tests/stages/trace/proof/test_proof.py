"""A trace is compared with the model at the min and max of every profile, and where an assumption of torch.export fails."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from trtbuild.core.model.spec import Input, NamedDim
from trtbuild.errors import SourceError
from trtbuild.stages.trace.proof import dataflow, proving
from trtbuild.stages.trace.proof.differences import difference

BATCH = {"x": ((1, 4), (2, 4), (8, 4))}
BY_TWO = {"x": ((4, 4), (8, 4), (16, 4))}
TWO_DIMS = {"x": ((4, 4), (6, 8), (16, 32))}


def error_of(traced, job_of, module, shapes=BATCH, **job_fields) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(module, job_of(shapes, **job_fields))
    return caught.value


def test_a_branch_on_batch_size_one_is_a_frozen_branch(traced, job_of) -> None:
    """A branch is frozen if the program contains only one side of it."""
    error = error_of(traced, job_of, lambda x: x * 2 if x.shape[0] == 1 else x * 3)
    assert error.code == "frozen-branch"
    assert "x.0 = 1" in error.text and (error.file, error.line) == ("trtbuild.yaml", 10)
    assert "torch.where" in error.hint


@pytest.mark.parametrize(
    ("one", "many", "text"),
    [
        (lambda y: {"one": y}, lambda y: {"many": y}, "returns dict('one') there, not dict('many')"),
        (lambda y: [y], lambda y: (y,), "returns list(0) there, not tuple(0)"),
        (lambda y: {"boxes": [y]}, lambda y: {"boxes": y}, "returns list(0) there, not a single value"),
    ],
    ids=["keys", "classes", "depth"],
)
def test_a_structure_of_outputs_that_depends_on_a_size_is_a_frozen_branch(traced, job_of, one, many, text) -> None:
    error = error_of(traced, job_of, lambda x: one(x * 2) if x.shape[0] == 1 else many(x * 2))
    assert error.code == "frozen-branch" and text in error.text and "x.0 = 1" in error.text


@pytest.mark.parametrize(
    ("shape", "is_special", "point"),
    [
        (((1, 1), (2, 4), (8, 8)), lambda x: x.shape[0] == 1 and x.shape[1] > 2, "x.0 = 1, x.1 = 8"),
        (((1, 1), (2, 4), (8, 8)), lambda x: x.shape[1] == 1 and x.shape[0] > 2, "x.0 = 8, x.1 = 1"),
        (((1, 4), (2, 4), (8, 8)), lambda x: x.shape[0] == 1 and x.shape[1] > 6, "x.0 = 1, x.1 = 8"),
        (
            ((1, 1, 1), (2, 3, 4), (8, 8, 8)),
            lambda x: x.shape[0] == x.shape[1] == 1 and x.shape[2] > 1,
            "x.0 = 1, x.1 = 1, x.2 = 8",
        ),
    ],
)
def test_a_branch_where_one_size_is_one_and_another_is_not_is_a_frozen_branch(
    traced, job_of, shape, is_special, point
) -> None:
    """torch.export assumes that no size is 1. So it makes no guard, and it does not evaluate the rest of the condition."""
    error = error_of(traced, job_of, lambda x: x * 2 if is_special(x) else x * 3, {"x": shape})
    assert error.code == "frozen-branch" and point in error.text


def test_a_branch_where_the_symbol_of_a_multiple_is_one_and_another_is_not_is_a_frozen_branch(traced, job_of) -> None:
    def model(x):
        return x * 2 if x.shape[0] // 2 == 1 and x.shape[1] > 5 else x * 3

    shapes, dims = {"x": ((2, 2), (4, 4), (8, 8))}, [NamedDim("rows", (("x", 0),), 2)]
    error = error_of(traced, job_of, model, shapes, dims=dims)
    assert error.code == "frozen-branch" and "x.0 = 2, x.1 = 8" in error.text


def test_a_model_is_called_only_inside_its_profiles(traced, job_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "FLOWS_WORTHWHILE_S", math.inf)  # always compare values, even on a busy machine
    seen = set()

    def model(x):
        if not torch.compiler.is_exporting():
            seen.add(tuple(x.shape))
        return x * 2

    traced(model, job_of([{"x": ((1, 1), (2, 2), (2, 4))}, {"x": ((8, 1), (8, 8), (8, 16))}]))
    assert seen == {(2, 2), (1, 1), (2, 4), (1, 4), (2, 1), (8, 1), (8, 16)}


def test_a_branch_with_equal_results_is_not_a_frozen_branch(traced, job_of) -> None:
    traced(lambda x: x + x if x.shape[0] == 1 else x * 2, job_of(BATCH))


def test_the_values_of_the_example_and_of_the_proof_are_in_the_range_of_an_input(traced, job_of) -> None:
    table = nn.Embedding(5, 3)
    seen = []

    def model(ids):
        if not torch.compiler.is_exporting():
            seen.append(ids.clone())
        return table(ids - 100)

    inputs = (Input("ids", "int64", range=(100, 104)),)
    traced(model, job_of({"ids": ((1, 4), (2, 4), (8, 4))}, inputs=inputs))
    assert len(seen) >= 2 and all(bool(((ids >= 100) & (ids <= 104)).all()) for ids in seen)
    assert len(set(torch.cat([ids.reshape(-1) for ids in seen]).tolist())) > 2


def test_the_error_about_integers_that_fail_at_some_size_suggests_a_range(traced, job_of) -> None:
    table = nn.Embedding(5, 3)

    def model(ids):
        return table((ids * 0 + 1).cumsum(0))

    error = error_of(traced, job_of, model, {"ids": ((1, 4), (2, 4), (8, 4))}, inputs=(Input("ids", "int64"),))
    assert error.code == "eager" and "range: [LOWEST, HIGHEST]" in error.hint


@pytest.mark.parametrize("end", [(2, 6), (8, 8), (3, 4), (16, 16)])
def test_each_profile_is_proven_at_both_ends(traced, job_of, end: tuple[int, int]) -> None:
    """The model differs from its trace at one end of one profile only. torch.export does not report this size."""

    def model(x):
        is_end = not torch.compiler.is_exporting() and tuple(x.shape) == end
        return x * 2 if is_end else x * 3

    shapes = [{"x": ((2, 6), (4, 8), (8, 8))}, {"x": ((3, 4), (4, 8), (16, 16))}]
    error = error_of(traced, job_of, model, shapes)
    assert error.code == "frozen-branch" and f"x.0 = {end[0]}, x.1 = {end[1]}" in error.text


def test_a_guard_on_a_multiple_that_export_does_not_report_is_detected(traced, job_of) -> None:
    """torch 2.13 exports this model with ``2*Dim``, and reports nothing. The program is wrong at sizes such as 6."""
    dims = [NamedDim("rows", (("x", 0),), 2)]
    error = error_of(traced, job_of, lambda x: x if x.shape[0] % 4 == 0 else x + 1, BY_TWO, dims=dims)
    assert error.code == "frozen-branch" and "x.0 = 6" in error.text
    assert error.hint == "write dims: {rows: {at: [x.0], multiple_of: 4}}"
    assert (error.file, error.line) == ("trtbuild.yaml", 20)


def test_a_view_that_fits_some_multiples_only_is_an_error_of_the_model(traced, job_of) -> None:
    dims = [NamedDim("rows", (("x", 0),), 2)]
    error = error_of(traced, job_of, lambda x: x.view(-1, 16), BY_TWO, dims=dims)
    assert error.code == "eager" and "x.0 = 6" in error.text
    assert "multiple_of: 4" in error.hint


def test_a_relation_between_two_dims_that_export_does_not_report_is_detected(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: x + 1 if x.shape[0] > x.shape[1] else x + 2, TWO_DIMS)
    assert error.code == "frozen-branch" and "x.0 <= x.1" in error.text


def test_a_branch_on_two_equal_dims_is_detected_inside_the_range(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: x + 1 if x.shape[0] == x.shape[1] else x + 2, TWO_DIMS)
    assert error.code == "frozen-branch"


@pytest.mark.parametrize(
    "is_special",
    [
        lambda x, y: x.shape[0] + 511 == y.shape[0],
        lambda x, y: x.shape[0] * y.shape[0] == 997 * 991,
        lambda x, y: (x.shape[0] // 14) * (y.shape[0] // 14) == 37 * 37,  # a table of positions for one image size
    ],
)
def test_a_branch_on_two_dims_that_few_pairs_of_sizes_take_is_a_frozen_branch(traced, job_of, is_special) -> None:
    shapes = {"x": ((98,), (200,), (1036,)), "y": ((98,), (300,), (1036,))}
    error = error_of(traced, job_of, lambda x, y: (x * (2 if is_special(x, y) else 3), y), shapes)
    assert error.code == "frozen-branch"


def test_a_branch_with_equal_results_at_size_1_only_is_a_frozen_branch(traced, job_of) -> None:
    """The softmax over one key is 1 with and without the mask. So the point with one key does not show the difference."""

    def attention(q, k):
        scores = q @ k.transpose(-1, -2)
        if q.shape[0] > k.shape[0]:
            scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(1), -1e9)
        return torch.softmax(scores, -1)

    shapes = {"q": ((2, 4), (4, 4), (16, 4)), "k": ((1, 4), (8, 4), (16, 4))}
    assert error_of(traced, job_of, attention, shapes).code == "frozen-branch"


def test_a_tensor_that_a_cache_has_kept_from_the_trace_is_an_error_of_the_model(traced, job_of) -> None:
    @functools.lru_cache
    def positions() -> torch.Tensor:
        return torch.arange(4.0)

    with pytest.raises(SourceError, match=r"kept from the trace, for example in functools\.lru_cache") as caught:
        traced(lambda x: x + positions(), job_of(BATCH))
    assert caught.value.hint is not None and "is_compiling" in caught.value.hint
    positions.cache_clear()
    traced(lambda x: x + (positions.__wrapped__ if torch.compiler.is_compiling() else positions)(), job_of(BATCH))


class Remembers(nn.Module):
    """Keeps a value between calls outside of its buffers. `kind` names the place: a tensor, a list or a number."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.tensor, self.tensors, self.calls = kind, torch.zeros(1, 4), [], 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "tensor":
            self.tensor = torch.tanh(x + self.tensor)
            return self.tensor * 2
        if self.kind == "list":
            self.tensors.append(x)
            return torch.stack(self.tensors).sum(0)
        self.calls += 1
        return x * self.calls


def zeroed_memory(fake: torch.Tensor) -> torch.Tensor:
    with _disable_current_modes():
        return torch.zeros(tuple(fake.shape), dtype=fake.dtype)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "list", "number"])
@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_a_model_that_keeps_a_value_outside_of_its_buffers_is_rejected(
    traced, job_of, monkeypatch: pytest.MonkeyPatch, kind: str, is_large: bool
) -> None:
    """All shapes are static, so there is one point only."""
    monkeypatch.setattr(proving, "LARGE_WEIGHTS_BYTES", -1 if is_large else 1)
    # A flow leaves a tensor in the module whose elements are not computed. The memory of this tensor may still have the
    # bytes of the value before the call.
    monkeypatch.setattr(dataflow, "memory_like", zeroed_memory)
    error = error_of(traced, job_of, Remembers(kind).eval(), {"x": ((1, 4),) * 3})
    assert error.code == "state" and "second call" in error.text


def test_the_error_about_a_kept_value_does_not_blame_a_size(traced, job_of) -> None:
    assert error_of(traced, job_of, Remembers("number").eval()).code == "state"


@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_a_model_may_keep_a_value_that_it_does_not_read(traced, job_of) -> None:
    class KeepsFeatures(nn.Module):
        features = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.features = torch.tanh(x)
            return self.features * 2

    traced(KeepsFeatures().eval(), job_of({"x": ((1, 4),) * 3}))


def test_the_error_of_a_model_that_fails_at_min_names_the_shapes_and_the_users_line(traced, job_of) -> None:
    def fails_at_one_row(x):
        if x.shape[0] == 1:
            raise ValueError("one is too few")
        return x

    error = error_of(traced, job_of, fails_at_one_row)
    assert error.code == "eager" and "x.0 = 1" in error.text and "one is too few" in error.text
    assert error.line == fails_at_one_row.__code__.co_firstlineno + 2


def test_accepts_equal_integers_and_bools(traced, job_of) -> None:
    traced(lambda x: (x > 0, x.long().argmax(-1)), job_of(BATCH))


def test_nan_and_infinities_at_the_same_places_are_equal(traced, job_of) -> None:
    traced(lambda x: (x.log(), x / 0), job_of(BATCH))


def test_differences_are_relative_to_the_largest_number() -> None:
    expected = torch.tensor([1.0, 1000.0])
    assert difference(expected, expected.clone()) is None
    assert difference(expected + torch.tensor([0.001, 0.0]), expected) is None
    assert difference(expected + torch.tensor([0.0, 1.0]), expected) == pytest.approx(1e-3)
    assert difference(torch.zeros(2), torch.zeros(2)) is None
    assert difference(torch.ones(2), torch.zeros(2)) == float("inf")


def test_differences_that_are_not_numbers_have_a_description() -> None:
    expected = torch.tensor([1.0, 1000.0])
    assert difference(torch.tensor([float("nan"), 1.0]), expected) == "NaN at other places"
    assert difference(torch.tensor([float("inf"), 1.0]), expected) == "infinities at other places"
    assert difference(expected.double(), expected) == "dtype torch.float64 instead of torch.float32"
    assert difference(expected[:1], expected) == "shape [1] instead of [2]"
    assert difference(torch.tensor([1]), torch.tensor([2])) == "other values"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_float8_are_compared_exactly(dtype: torch.dtype) -> None:
    expected = torch.tensor([1.0, float("nan"), 384.0]).to(dtype)
    assert difference(expected.clone(), expected) is None
    assert difference(torch.tensor([1.5, float("nan"), 384.0]).to(dtype), expected) == "other values"


def test_weights_that_are_not_contiguous_are_stored_contiguously(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())

        def forward(self, x):
            return x @ self.w

    result = traced(Model().eval(), job_of(BATCH))
    ((slot, value),) = result.weights
    assert slot == 0 and value.is_contiguous() and value.shape == (4, 3)
