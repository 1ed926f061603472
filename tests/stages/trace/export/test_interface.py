"""The interface in the record of a trace: names, the structure of outputs, size expressions."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}
Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Checked:
    """A dataclass that computes with its fields."""

    logits: torch.Tensor
    mask: torch.Tensor | None
    scale: float | None = 0.5

    def __post_init__(self) -> None:
        self.logits = self.logits.reshape(-1) * 2


class CheckedPair(NamedTuple("CheckedPair", [("left", Any), ("right", Any)])):
    """A named tuple that checks its fields."""

    def __new__(cls, left: Any, right: Any) -> CheckedPair:
        assert left.shape == right.shape
        return super().__new__(cls, left, right)


class Boxes:
    """A class that an application has registered without the names of its fields."""

    def __init__(self, corners: torch.Tensor, labels: torch.Tensor) -> None:
        self.corners, self.labels, self.count = corners, labels, corners.shape[0]


torch.export.register_dataclass(Checked)
pytree.register_pytree_node(
    Boxes, lambda boxes: ([boxes.corners, boxes.labels], None), lambda children, _: Boxes(*children)
)


def interface(traced: Callable[..., Any], job_of: Callable[..., Any], function: Callable[..., Any]) -> Any:
    return traced(function, job_of(SHAPES)).interface


def names(recorded: Any) -> list[str]:
    return [entry["name"] for entry in recorded["outputs"]]


def test_a_single_tensor_is_output_0(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: x * 2)
    assert names(recorded) == ["output_0"] and recorded["output_tree"] == {"kind": "tensor", "index": 0}


def test_the_items_of_tuples_are_numbered(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
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


def test_a_dataclass_that_computes_with_its_fields_keeps_them(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    recorded = interface(traced, job_of, lambda x: Checked(x * 2, None, 3.0))
    tree = recorded["output_tree"]
    assert names(recorded) == ["logits"] and tree["keys"] == ["logits", "scale", "mask"]
    assert [item["kind"] for item in tree["items"]] == ["tensor", "constant", "none"]


def test_a_field_that_is_none_does_not_get_its_default(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    tree = interface(traced, job_of, lambda x: Checked(x * 2, x * 3, None))["output_tree"]
    assert tree["keys"] == ["logits", "mask", "scale"] and tree["items"][2] == {"kind": "none"}


def test_a_model_output_of_transformers_with_one_tensor_keeps_its_field(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    recorded = interface(traced, job_of, lambda x: outputs.BaseModelOutput(x * 2))
    assert names(recorded) == ["last_hidden_state"] and recorded["output_tree"]["keys"] == ["last_hidden_state"]


def test_a_named_tuple_that_checks_its_fields_keeps_them(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    assert names(interface(traced, job_of, lambda x: CheckedPair(x * 2, x * 3))) == ["left", "right"]


def test_a_registered_class_without_names_has_numbers(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    recorded = interface(traced, job_of, lambda x: Boxes(x * 2, x * 3))
    assert names(recorded) == ["output_0", "output_1"] and recorded["output_tree"]["keys"] == [0, 1]


def test_a_defaultdict_is_a_dict(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    def model(x: torch.Tensor) -> Any:
        losses = collections.defaultdict(list)
        losses["scores"].append(x * 2)
        return losses

    recorded = interface(traced, job_of, model)
    assert names(recorded) == ["scores_0"] and recorded["output_tree"]["kind"] == "dict"


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


def test_a_dataclass_is_not_created_again_for_a_model_with_writes(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    def model(x: torch.Tensor) -> Any:
        y = x.clone()
        y[:, 0] = 1
        return Checked(y, x, None)

    tree = interface(traced, job_of, model)["output_tree"]
    assert tree["type"].endswith(":Checked") and tree["keys"] == ["logits", "mask", "scale"]
