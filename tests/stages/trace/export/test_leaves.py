"""Returned numbers are 0-d tensors in the program, and numbers in the output structure. Constants stay constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program

Function = Callable[..., Any]
SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


def leaf(kind: str, index: int) -> dict[str, Any]:
    """The entry of a number in the output structure. `index` is the position of its 0-d tensor among the outputs."""
    return {"kind": "number", "type": kind, "index": index}


def outputs(traced: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(Program.from_bytes(traced.program).exported.graph_module(*inputs))


def output_types(result: Any) -> list[tuple[str, Any]]:
    return [(entry["dtype"], entry["shape"]) for entry in result.interface["outputs"]]


def test_a_size_is_an_int64_scalar(traced: Function, job_of: Function) -> None:
    result = traced(lambda x: (x * 2, x.shape[0]), job_of(SHAPES))
    assert result.interface["output_tree"]["items"] == [{"kind": "tensor", "index": 0}, leaf("int", 1)]
    assert output_types(result) == [("float32", [["sym", 0], 4]), ("int64", [])]
    assert [entry["name"] for entry in result.interface["outputs"]] == ["output_0", "output_1"]
    for rows in (1, 8):
        assert torch.equal(outputs(result, torch.randn(rows, 4))[1], torch.tensor(rows))


@pytest.mark.parametrize(
    ("function", "kind", "dtype"),
    [
        (lambda x: x.shape[0] * x.shape[1] - 1, "int", torch.int64),
        (lambda x: -x.shape[0], "int", torch.int64),
        (lambda x: x.shape[0] / 3, "float", torch.float64),
        (lambda x: x.shape[0] == 1, "bool", torch.bool),
        (lambda x: x.shape[0] > 4, "bool", torch.bool),
        (lambda x: x.sum().item(), "float", torch.float64),
        (lambda x: x.half().sum().item() * 2, "float", torch.float64),
        (lambda x: x.argmax().item(), "int", torch.int64),
        (lambda x: (x.sum() > 0).item(), "bool", torch.bool),
        (lambda x: x.nonzero().shape[0], "int", torch.int64),
    ],
)
def test_each_kind_of_number_is_exact(
    traced: Function, job_of: Function, function: Callable[..., Any], kind: str, dtype: torch.dtype
) -> None:
    result = traced(lambda x: {"y": x * 2, "n": function(x)}, job_of(SHAPES))
    assert result.interface["output_tree"]["items"][1] == leaf(kind, 1)
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        number = outputs(result, x)[1]
        assert number.dtype == dtype and number.item() == function(x) and type(number.item()).__name__ == kind


def test_a_number_that_is_returned_twice_is_one_output(traced: Function, job_of: Function) -> None:
    result = traced(lambda x: (x * 2, x.shape[0], [x.size(0), x.shape[0] * 2]), job_of(SHAPES))
    _, rows, nested = result.interface["output_tree"]["items"]
    assert [rows, *nested["items"]] == [leaf("int", 1), leaf("int", 1), leaf("int", 2)]
    assert len(result.interface["outputs"]) == 3


def test_a_size_that_the_manifest_fixes_stays_a_constant(traced: Function, job_of: Function) -> None:
    result = traced(lambda x: (x * 2, x.shape[1]), job_of(SHAPES))
    assert result.interface["output_tree"]["items"][1] == {"kind": "constant", "value": 4}


def test_a_number_belongs_to_no_module(traced: Function, job_of: Function) -> None:
    """If the number's node belonged to the last layer, this layer would differ from otherwise equal layers."""
    result = traced(lambda x: (x * 2, x.shape[0]), job_of(SHAPES))
    assert result.modules[-1] == ("", "aten.scalar_tensor.default", "")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: (x * 2, 1 if x.shape[0] == 1 else 2), "output 1 is 1 there, not 2"),
        (lambda x: (x * 2, True if x.shape[0] == 1 else 1), "output 1 is True there, not 1"),
        (lambda x: (x * 2, 1 if x.shape[0] == 1 else 1.0), "output 1 is 1 there, not 1.0"),
        (lambda x: (x * 2, x.shape[0] if x.shape[0] != 1 else 0.5), "output 1 is 0.5 there, not a number of type int"),
        (lambda x: (x * 2, x.shape[0] if x.shape[0] != 1 else -1), "output 1 has other values"),
        (lambda x: (x * 2, 3, None) if x.shape[0] == 1 else (x * 2, 3), "the model returns 3 values there, not 2"),
        (lambda x: (x * 2, x + 1) if x.shape[0] == 1 else (x * 2, 3), "the model returns 2 tensors there, not 1"),
        (lambda x: (3, x) if x.shape[0] == 1 else (x, 3), "output 0 is a number or a constant there, not a tensor"),
    ],
)
def test_rejects_a_model_if_another_branch_returns_another_number_or_constant(
    traced: Function, job_of: Function, function: Callable[..., Any], text: str
) -> None:
    with pytest.raises(SourceError) as raised:
        traced(function, job_of(SHAPES))
    assert raised.value.code == "frozen-branch" and text in raised.value.text
