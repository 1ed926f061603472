"""The interface that a trace records: names, the output structure, expressions."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}
Pair = collections.namedtuple("Pair", ["left", "right"])


def interface(traced: Callable[..., Any], job_of: Callable[..., Any], function: Callable[..., Any]) -> Any:
    return traced(function, job_of(SHAPES)).interface


def names(found: Any) -> list[str]:
    return [entry["name"] for entry in found["outputs"]]


def test_a_single_tensor(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: x * 2)
    assert names(found) == ["output_0"] and found["output_tree"] == {"kind": "tensor", "index": 0}


def test_tuples_are_numbered(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: (x * 2, [x * 3, None]))
    assert names(found) == ["output_0", "output_1_0"]
    assert found["output_tree"] == {
        "kind": "tuple",
        "items": [
            {"kind": "tensor", "index": 0},
            {"kind": "list", "items": [{"kind": "tensor", "index": 1}, {"kind": "none"}]},
        ],
    }


def test_dicts_and_constants(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: {"logits": x * 2, "n": 3, "rate": 0.5, "deep": {"y": x + 1}})
    assert names(found) == ["logits", "deep_y"]
    tree = found["output_tree"]
    assert tree["kind"] == "dict" and tree["keys"] == ["logits", "n", "rate", "deep"]
    assert tree["items"][1] == {"kind": "constant", "value": 3}
    assert tree["items"][2] == {"kind": "constant", "value": {"$f64": "3fe0000000000000"}}


def test_named_tuples(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: Pair(x * 2, x * 3))
    assert names(found) == ["left", "right"]
    assert found["output_tree"]["kind"] == "namedtuple" and found["output_tree"]["keys"] == ["left", "right"]


def test_an_output_that_is_returned_twice_is_one_output(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    def twice(x: torch.Tensor) -> Any:
        y = x * 2
        return {"a": y, "b": y, "c": x}

    found = interface(traced, job_of, twice)
    assert names(found) == ["a", "c"]
    assert [item["index"] for item in found["output_tree"]["items"]] == [0, 0, 1]


def test_names_are_unique_among_inputs_and_outputs(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: {"x": x * 2, "a.b": x, "a_b": x * 3})
    assert names(found) == ["x_out", "a_b", "a_b_out"]


def test_sizes_are_expressions_of_the_manifests_symbols(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: torch.cat([x, x]).reshape(-1))
    assert found["outputs"][0]["shape"] == [["mul", 8, ["sym", 0]]]
    assert found["outputs"][0]["dtype"] == "float32"
    assert found["symbols"] == [{"name": "x_0", "min": 1, "max": 8, "multiple_of": 1}]


def test_a_size_that_depends_on_data_says_so(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    found = interface(traced, job_of, lambda x: x[x > 0])
    assert found["outputs"][0]["shape"] == [["data", 0]]
