"""Functions with equal flows (operator calls with their arguments) give equal results.

If the operator calls of a function do not determine its results, `describe_results` raises CannotFollow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trtbuild.stages.trace.proof.dataflow import CannotFollow, Flows

WEIGHT = torch.ones(4, 4)
OTHER = torch.ones(4, 4)
X = torch.empty(3, 4)


def weight_key(tensor: torch.Tensor) -> str | None:
    return {id(WEIGHT): "0", id(OTHER): "1"}.get(id(tensor))


def flow(flows: Flows, function: Callable[..., Any], inputs: Sequence[torch.Tensor] = (X,)) -> Any:
    with torch.no_grad():
        return flows.describe_results(lambda values: function(*values), inputs, weight_key)


def are_equal(first: Callable[..., Any], second: Callable[..., Any], inputs: Sequence[torch.Tensor] = (X,)) -> bool:
    flows = Flows()
    return bool(flow(flows, first, inputs) == flow(flows, second, inputs))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: F.linear(x, WEIGHT), lambda x: x @ WEIGHT.t()),
        (lambda x: x.clone() + 1, lambda x: x + 1),
        (lambda x: x.reshape(12).view(4, 3), lambda x: x.reshape(4, 3)),
        (lambda x: F.relu(x + 1, inplace=True), lambda x: F.relu(x + 1)),
        (lambda x: (x + 1).mul_(2), lambda x: (x + 1) * 2),
        (lambda x: F.dropout(x, training=False), lambda x: x),
        (lambda x: x + torch.arange(4).float(), lambda x: x + torch.tensor([0.0, 1.0, 2.0, 3.0])),
    ],
)
def test_equivalent_functions_have_equal_flows(first: Any, second: Any) -> None:
    assert are_equal(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 2, lambda x: x * 2.0),
        (lambda x: x - 1, lambda x: 1 - x),
        # the two weights are equal now, but may differ later
        (lambda x: F.linear(x, WEIGHT), lambda x: F.linear(x, OTHER)),
        (lambda x: x.softmax(0), lambda x: x.softmax(1)),
        (lambda x: x + torch.arange(4), lambda x: x + torch.arange(1, 5)),
        (lambda x: x.double(), lambda x: x),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: x.view(4, 3), lambda x: x.t()),
        (lambda x: x[:2], lambda x: x[1:]),
    ],
)
def test_different_functions_have_different_flows(first: Any, second: Any) -> None:
    assert not are_equal(first, second)


def test_swapped_inputs_give_different_flows() -> None:
    assert not are_equal(lambda a, b: a - b, lambda a, b: b - a, (X, X))


def test_an_attention_mask_without_effect_is_ignored() -> None:
    q = torch.empty(1, 2, 5, 8)
    allow_all, causal = torch.ones(5, 5, dtype=torch.bool), torch.ones(5, 5, dtype=torch.bool).tril()
    attend = F.scaled_dot_product_attention
    assert are_equal(lambda q: attend(q, q, q, attn_mask=allow_all), lambda q: attend(q, q, q), (q,))
    assert not are_equal(lambda q: attend(q, q, q, attn_mask=causal), lambda q: attend(q, q, q), (q,))


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y[0].zero_()
    return y


def written_after_a_view_exists(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = y.view(-1)
    y.add_(1)
    return z


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * float(x.sum().item()),
        lambda x: x + torch.from_numpy(x.numpy()),
        lambda x: x * len(x.tolist()),
        lambda x: x.add_(1),
        lambda x: x + WEIGHT.t().add_(1)[:3],
        lambda x: x.nonzero(),
        lambda x: x + torch.rand(4),
        lambda x: F.dropout(x, 0.5),
        lambda x: x.as_strided((2, 2), (1, 1)),
        lambda x: torch.view_as_complex(x.view(3, 2, 2)).conj().real,
        written_through_a_view,
        written_after_a_view_exists,
    ],
)
def test_unsupported_functions_are_not_followed(function: Any) -> None:
    with pytest.raises(CannotFollow):
        flow(Flows(), function)
    assert bool((WEIGHT == 1).all())  # no function has written to the weight


def test_the_model_gets_ordinary_tensors() -> None:
    seen = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append((type(x), type(x + 1), torch.compiler.is_compiling()))
        return x

    flow(Flows(), model)
    assert seen == [(torch.Tensor, torch.Tensor, False)]


def test_each_side_of_a_branch_on_a_size_has_its_own_flow() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] == 3 else x * 3

    assert are_equal(Branch(), lambda x: x * 2)
    assert not are_equal(Branch(), lambda x: x * 2, (torch.empty(4, 4),))


def test_a_constant_index_beyond_its_table_fails_as_in_the_model() -> None:
    with pytest.raises(IndexError):
        flow(Flows(), lambda x: x + F.embedding(torch.arange(5), WEIGHT), (torch.empty(5, 4),))
    with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
        flow(Flows(), lambda x: x.gather(0, torch.full((3, 4), 3)))


def test_indices_that_grow_with_sizes_are_not_followed() -> None:
    """In RoBERTa, positions are cumulative sums of a mask. An in-place operator with indices is not followed, either."""
    mask = torch.empty(9, dtype=torch.int64)
    with pytest.raises(CannotFollow):
        flow(Flows(), lambda mask: F.embedding(mask.cumsum(0), WEIGHT), (mask,))
    with pytest.raises(CannotFollow):
        flow(Flows(), lambda x: (x + 1).scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 1.0))


def test_indices_that_are_inputs_are_followed() -> None:
    ids = torch.empty(2, 9, dtype=torch.int32)
    assert are_equal(
        lambda ids: F.embedding(ids.long().view(-1)[:6], WEIGHT),
        lambda ids: F.embedding(ids.long().view(18)[:6], WEIGHT),
        (ids,),
    )
    assert are_equal(
        lambda x: x[:, :3].index_select(1, torch.tensor([2, 0])),
        lambda x: x[:, :3].index_select(1, torch.tensor([2, 0])),
    )


@pytest.mark.parametrize("inference_mode", [False, True])
def test_one_hot_is_not_followed(inference_mode: bool) -> None:
    """`one_hot` reads the elements of its indices. In inference mode, only its `torch.Tag` shows this."""

    def model(ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(inference_mode):
            return F.one_hot(ids, 4)

    with pytest.raises(CannotFollow, match="_local_scalar_dense" if not inference_mode else "one_hot"):
        flow(Flows(), model, (torch.zeros(2, 9, dtype=torch.int64),))


def test_state_from_an_earlier_call_is_not_a_constant() -> None:
    class KeepsFirstResult(torch.nn.Module):
        kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = x * 0
            return x + self.kept[:1]

    module, flows = KeepsFirstResult(), Flows()
    flows.describe_results(lambda inputs: module(*inputs), [torch.ones(2, 3)], lambda tensor: None)
    with pytest.raises(CannotFollow, match="earlier call"):
        flows.describe_results(lambda inputs: module(*inputs), [torch.ones(4, 3)], lambda tensor: None)


def test_a_constant_kept_from_an_earlier_call_is_compared_by_its_elements() -> None:
    class KeepsPositions(nn.Module):
        kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = torch.arange(8.0)
            return x + self.kept[: x.shape[1]]

    module, flows = KeepsPositions(), Flows()
    first = flow(flows, module)
    assert flow(flows, module) == first == flow(flows, lambda x: x + torch.arange(4.0))
