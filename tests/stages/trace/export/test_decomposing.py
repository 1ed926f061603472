"""`decompose_without_retrace` returns the program that torch would get from a second trace.

If this is not certain, torch traces the program a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._export import utils

from trtbuild.stages.trace.export import exporting
from trtbuild.stages.trace.export.decomposing import decompose_without_retrace

#: The min, opt and max shape of the input. Only the number of rows (the first axis) varies.
ROWS = {"x": ((1, 4, 8), (3, 4, 8), (8, 4, 8))}
DYNAMIC_SECOND_AXIS = {"height": ((4, 6, 8), (4, 10, 8), (4, 16, 8))}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.1)
        self.register_buffer("scale", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + self.dropout(attended)) * self.scale


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "reshape": (lambda x: x.reshape(-1, 8) + 1, ROWS),
    "reshape of a tensor that is not contiguous": (lambda x: x.transpose(1, 2).reshape(x.shape[0], 32) + 1, ROWS),
    "flatten": (lambda x: x.flatten(1) * 2, ROWS),
    "unflatten": (lambda x: x.unflatten(2, (2, 4)) * 2, ROWS),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous() + x.contiguous().transpose(1, 2), ROWS),
    "to": (lambda x: x.to(torch.float16).to(torch.float32) + x.to(torch.float32), ROWS),
    "half": (lambda x: x.half().float().type_as(x) + 1, ROWS),
    "chunk": (lambda x: torch.cat(x.chunk(2, dim=2)[::-1], dim=2), ROWS),
    "split": (lambda x: x.split([3, 5], dim=2)[1] * 2, ROWS),
    "tensor_split": (lambda x: x.tensor_split(3, dim=2)[1] * 2, ROWS),
    "narrow": (lambda x: x.narrow(2, 1, 3) * 2, ROWS),
    "expand_as": (lambda x: x[:, :1].expand_as(x) + x, ROWS),
    "matmul": (lambda x: x @ x.mT, ROWS),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1) * 2, ROWS),
    "einsum": (lambda x: torch.einsum("bij,bkj->bik", x, x), ROWS),
    "dead code": (lambda x: (x * 3, x.reshape(-1) + 1)[1], ROWS),
    "two outputs": (lambda x: {"a": x.reshape(-1, 4) + 1, "b": x.flatten(1).relu()}, ROWS),
    "a view is returned": (lambda x: x.reshape(-1, 8), ROWS),
    "sizes": (lambda x: x.reshape(x.shape[1] * 4, -1) * x.shape[1], DYNAMIC_SECOND_AXIS),
    "a layer": (Layer(), ROWS),
    "a model in float16": (lambda x: nn.functional.softmax(x.half(), dim=-1, dtype=torch.float32).reshape(-1, 8), ROWS),
}


@pytest.fixture
def decompositions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The result of each call of `decompose_without_retrace` in the test."""
    results: list[Any] = []

    def record(raw: torch.export.ExportedProgram) -> Any:
        results.append(decompose_without_retrace(raw))
        return results[-1]

    monkeypatch.setattr(exporting, "decompose_without_retrace", record)
    return results


@pytest.mark.parametrize("name", CASES)
def test_a_decomposition_equals_a_retrace(
    name: str, traced, job_of, decompositions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shapes = CASES[name]
    if isinstance(model, nn.Module):
        model = model.eval()
    job = job_of(shapes)
    result = traced(model, job)
    assert decompositions[0] is not None
    monkeypatch.setattr(exporting, "decompose_without_retrace", lambda raw: None)
    retraced = traced(model, job)
    assert result.graph == retraced.graph
    assert result.modules == retraced.modules
    assert result.interface == retraced.interface
    assert [slot for slot, _ in result.weights] == [slot for slot, _ in retraced.weights]


def _writes(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0].add_(1)
    return y


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


UNCERTAIN: dict[str, Callable[..., Any]] = {
    "a write to a view": _writes,
    "a buffer": Counts().eval(),
    "a branch": lambda x: torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,)),
    "detach": lambda x: x.detach() + 1,
    "a new constant": lambda x: x + torch.tensor(2.0),
    "an input is returned": lambda x: (x, x + 1),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_an_uncertain_decomposition_returns_none_and_changes_nothing(name: str) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return model(x)

    model = UNCERTAIN[name]
    module = model if isinstance(model, nn.Module) else Model().eval()
    dynamic = ({0: torch.export.Dim("rows", min=1, max=8)},)
    raw = torch.export.export(module, (torch.zeros(4, 4, 8),), dynamic_shapes=dynamic, strict=False)
    before = raw.graph_module.code
    assert decompose_without_retrace(raw) is None
    assert raw.graph_module.code == before


def test_a_program_with_undecided_strides_is_retraced(traced, job_of, decompositions: list[Any]) -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (8,)).view(-1, 8) @ torch.ones(8, 8)

    result = traced(rows, job_of({"x": ((1, 2, 8), (3, 5, 8), (8, 9, 8))}))
    assert decompositions == [None]
    assert '"min"' not in result.graph  # an undecided stride is an expression with min or max


def test_decomposing_does_not_change_its_input() -> None:
    raw = torch.export.export(Layer().eval(), (torch.zeros(3, 4, 8),), strict=False)
    before = raw.graph_module.code, str(raw.graph_signature)
    result = decompose_without_retrace(raw)
    assert result is not None and result.graph is not raw.graph
    assert (raw.graph_module.code, str(raw.graph_signature)) == before


def test_torch_has_the_internal_functions_about_composite_operators() -> None:
    """`stages.trace.export.decomposing` and `stages.lower.functionalize` use the two private functions of torch below."""
    aten = torch.ops.aten
    assert [utils._is_cia_op(op) for op in (aten.reshape.default, aten.linear.default, aten.add.Tensor)] == [
        True,
        True,
        False,
    ]
    preservable = [
        utils._is_preservable_cia_op(op) for op in (aten.reshape.default, aten.dropout.default, aten.matmul.default)
    ]
    assert preservable == [False, False, True]
