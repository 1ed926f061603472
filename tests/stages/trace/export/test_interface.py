"""The interface in the record of a trace: names, the structure of outputs, size expressions."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}
Pair = collections.namedtuple("Pair", ["left", "right"])


def interface(traced: Callable[..., Any], job_of: Callable[..., Any], function: Callable[..., Any]) -> Any:
    return traced(function, job_of(SHAPES)).interface


def names(recorded: Any) -> list[str]:
    return [entry["name"] for entry in recorded["outputs"]]


def test_a_single_tensor_is_output_0(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: x * 2)
    assert names(recorded) == ["output_0"] and recorded["output_tree"] == {"kind": "tensor", "index": 0}


def test_tuples_are_numbered(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: (x * 2, [x * 3, None]))
    assert names(recorded) == ["output_0", "output_1_0"]
    assert recorded["output_tree"] == {
        "kind": "tuple",
        "items": [
            {"kind": "tensor", "index": 0},
            {"kind": "list", "items": [{"kind": "tensor", "index": 1}, {"kind": "none"}]},
        ],
    }


def test_dicts_keep_their_keys_and_constants(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: {"logits": x * 2, "n": 3, "rate": 0.5, "deep": {"y": x + 1}})
    assert names(recorded) == ["logits", "deep_y"]
    tree = recorded["output_tree"]
    assert tree["kind"] == "dict" and tree["keys"] == ["logits", "n", "rate", "deep"]
    assert tree["items"][1] == {"kind": "constant", "value": 3}
    assert tree["items"][2] == {"kind": "constant", "value": {"$f64": "3fe0000000000000"}}  # 0.5


def test_named_tuples_keep_their_fields(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: Pair(x * 2, x * 3))
    assert names(recorded) == ["left", "right"]
    assert recorded["output_tree"]["kind"] == "namedtuple" and recorded["output_tree"]["keys"] == ["left", "right"]


def test_an_output_that_is_returned_twice_is_one_output(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    def twice(x: torch.Tensor) -> Any:
        y = x * 2
        return {"a": y, "b": y, "c": x}

    recorded = interface(traced, job_of, twice)
    assert names(recorded) == ["a", "c"]
    assert [item["index"] for item in recorded["output_tree"]["items"]] == [0, 0, 1]


def test_names_are_unique_among_inputs_and_outputs(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: {"x": x * 2, "a.b": x, "a_b": x * 3})
    assert names(recorded) == ["x_out", "a_b", "a_b_out"]


def test_sizes_are_expressions_of_the_manifests_symbols(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: torch.cat([x, x]).reshape(-1))
    assert recorded["outputs"][0]["shape"] == [["mul", 8, ["sym", 0]]]
    assert recorded["outputs"][0]["dtype"] == "float32"
    assert recorded["symbols"] == [{"name": "x_0", "min": 1, "max": 8, "multiple_of": 1}]


def test_a_size_that_depends_on_data_is_marked(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: x[x > 0])
    assert recorded["outputs"][0]["shape"] == [["data", 0]]
