"""The weights of a program, from the trace or a weights file, and the documents of interfaces and weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtbuild.core.engines.binding import (
    Interface,
    WeightSlot,
    bind_weights,
    weight_types,
    weights_from_json,
    weights_to_json,
)
from trtbuild.core.engines.engine_job import Weight
from trtbuild.errors import SourceError


def weight(value: str, shape: tuple[int, ...] = (2,)) -> Weight:
    """Return a weight. Its digest is the letter `value`, 64 times."""
    return Weight("float32", shape, value * 64)


INTERFACE = Interface(
    slots=(
        WeightSlot("embed.weight", "float32", (2,), persistent=True),
        WeightSlot("body.weight", "float32", (2,), persistent=True),
        WeightSlot("body.mask", "float32", (2,), persistent=False),
    ),
    aliases={"head.weight": "embed.weight"},
    inputs=(),
    outputs=(),
    output_tree=None,
)
TRACED = {"0": weight("0"), "1": weight("1"), "2": weight("2")}


def test_without_a_file_the_weights_are_those_of_the_trace() -> None:
    assert bind_weights(INTERFACE, TRACED, None) == (weight("0"), weight("1"), weight("2"))


def test_weights_of_a_file_are_bound_to_slots_by_name() -> None:
    assert bind_weights(INTERFACE, TRACED, {"body.weight": weight("b"), "embed.weight": weight("a")}) == (
        weight("a"),
        weight("b"),
        weight("2"),
    )


def test_a_weight_that_is_not_in_the_file_comes_from_the_trace() -> None:
    """A buffer that is not persistent is in no weights file, because the model computes it."""
    in_file = {"embed.weight": weight("a"), "body.weight": weight("b")}
    assert bind_weights(INTERFACE, {"2": weight("2")}, in_file)[2] == weight("2")


def test_a_tied_weight_is_found_under_each_of_its_names() -> None:
    assert bind_weights(INTERFACE, TRACED, {"head.weight": weight("h"), "body.weight": weight("b")})[0] == weight("h")
    both = {"head.weight": weight("h"), "embed.weight": weight("h"), "body.weight": weight("b")}
    assert bind_weights(INTERFACE, TRACED, both)[0] == weight("h")


def test_rejects_tied_weights_with_different_values() -> None:
    with pytest.raises(SourceError) as caught:
        bind_weights(
            INTERFACE, TRACED, {"head.weight": weight("h"), "embed.weight": weight("e"), "body.weight": weight("b")}
        )
    assert caught.value.code == "tied-weights"
    assert "embed.weight and head.weight are one tensor in the model" in caught.value.text
    assert caught.value.hint is not None


def test_rejects_a_slot_that_has_no_value() -> None:
    with pytest.raises(KeyError, match="2"):  # the slot of body.mask
        bind_weights(INTERFACE, {}, {"embed.weight": weight("a"), "body.weight": weight("b")})


def test_an_interface_is_read_and_an_invalid_one_is_refused() -> None:
    document: dict[str, Any] = {
        "weights": [{"name": "embed.weight", "dtype": "float32", "shape": [2, 3], "persistent": True}],
        "aliases": {"head.weight": "embed.weight"},
        "inputs": [{"name": "x"}],
        "outputs": [{"name": "y"}],
        "output_tree": {"kind": "tensor", "index": 0},
        "symbols": [],
    }
    interface = Interface.from_bytes(json.dumps(document).encode())
    assert interface.slots == (WeightSlot("embed.weight", "float32", (2, 3), persistent=True),)
    assert (interface.aliases, interface.inputs, interface.outputs) == (
        {"head.weight": "embed.weight"},
        ({"name": "x"},),
        ({"name": "y"},),
    )
    for name in ("weights", "aliases", "inputs", "outputs", "output_tree"):
        with pytest.raises(KeyError):
            Interface.from_bytes(json.dumps({k: v for k, v in document.items() if k != name}).encode())
    for name in ("inputs", "outputs"):
        for wrong in (["x"], [[1]], [None]):
            with pytest.raises(ValueError, match="are objects"):
                Interface.from_bytes(json.dumps({**document, name: wrong}).encode())


def test_an_interface_of_an_older_version_which_does_not_describe_its_operators_is_refused() -> None:
    document: dict[str, Any] = {"weights": [], "aliases": {}, "inputs": [], "outputs": [], "output_tree": None}
    entry = {"name": "mylib.twist.default", "schema": "mylib::twist(Tensor x) -> Tensor"}
    document |= {"operators": {"mylib.twist.default": "digest"}}
    (operator,) = Interface.from_bytes(json.dumps({**document, "custom_operators": [entry]}).encode()).operators
    assert operator.schema == entry["schema"]
    with pytest.raises(ValueError, match="an earlier version of trtbuild traced the model"):  # so the trace runs again
        Interface.from_bytes(json.dumps(document).encode())


def test_a_table_is_read_back_from_json() -> None:
    table = {"a": weight("a", (2, 3)), "b": weight("b", ())}
    assert weights_from_json(json.loads(json.dumps(weights_to_json(table)))) == table


@pytest.mark.parametrize(
    "wrong",
    [{"sha256": "../../x"}, {"sha256": 5}, {"shape": [-1]}, {"shape": ["2"]}, {"shape": "23"}, {"dtype": None}],
)
def test_a_table_with_an_invalid_weight_is_refused(wrong: dict[str, Any]) -> None:
    """Another machine may have stored it. So the trace runs again."""
    entry: Any = weights_to_json({"a": weight("a", (2, 3))})["a"]
    with pytest.raises(ValueError, match="a weight has"):
        weights_from_json({"a": {**entry, **wrong}})


def test_the_types_of_weights_are_sorted_by_name_and_independent_of_values() -> None:
    table = {"b": weight("b", (2,)), "a": weight("a", ())}
    assert weight_types(table) == [("a", "float32", ()), ("b", "float32", (2,))]
    assert weight_types(table) == weight_types({"a": weight("x", ()), "b": weight("y", (2,))})
    assert weight_types(None) is None
