"""Accepted models compute int64 values correctly in 32 bits. Values that may overflow are rejected."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx import helper as h

from trtbuild.toolchain.compiling.foreign_types import foreign_nodes
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline
from trtbuild.toolchain.tensorrt8.int64_bounds import LIKELY_SIZE

TENSORRT_8_6 = release("tensorrt", "8.6.0")
#: Nodes that compute `size`, the size of the input's first axis.
_SIZE = [h.make_node("Shape", ["i0"], ["v0"]), h.make_node("Gather", ["v0", "first"], ["size"])]
_BIG = np.array(2_000_000_000)


def rejected_operators(
    make_model: Any,
    nodes: Sequence[Any],
    constants: Mapping[str, np.ndarray],
    largest_sizes: Mapping[str, int] | None = None,
) -> list[str]:
    """The operators that `foreign_nodes` rejects for TensorRT 8.6. `nodes` may read `size` (`_SIZE`). `largest_sizes` maps
    an input to the largest size of its axes."""
    model = make_model(
        [*_SIZE, *nodes],
        [("FLOAT", ["d0", 4])],
        ["FLOAT"],
        weights=[],
        constants={"first": np.array(0), "zero": np.array(0), **constants},
    )
    reasons = foreign_nodes(read_outline(model), TENSORRT_8_6.dtypes, narrows_int64=True, largest_sizes=largest_sizes)
    return [reason.partition(":")[0] for reason in reasons.values()]


def test_rejects_a_size_that_may_grow_beyond_32_bits(make_model: Any) -> None:
    nodes = [h.make_node("Mul", ["size", "c"], ["v1"]), h.make_node("Cast", ["v1"], ["o0"], to=TensorProto.FLOAT)]
    assert rejected_operators(make_model, nodes, {"c": _BIG}) == ["Mul", "Cast"]
    assert rejected_operators(make_model, nodes, {"c": np.array(12)}) == []


def test_rejects_a_quotient_of_an_overflowing_product(make_model: Any) -> None:
    """(size * 2e9) // 2e9 is equal to size, but not if the product overflows."""
    nodes = [
        h.make_node("Mul", ["size", "c"], ["v1"]),
        h.make_node("Div", ["v1", "c"], ["v2"]),
        h.make_node("Unsqueeze", ["v2", "first"], ["v3"]),
        h.make_node("Expand", ["i0", "v3"], ["o0"]),
    ]
    assert rejected_operators(make_model, nodes, {"c": _BIG})[:2] == ["Mul", "Div"]


def test_accepts_a_product_that_is_only_used_as_a_size(make_model: Any) -> None:
    """An example is batch * positions * heads. If it overflowed, the tensor would have too many elements."""
    nodes = [
        h.make_node("Gather", ["v0", "one"], ["other"]),
        h.make_node("Mul", ["size", "other"], ["v1"]),
        h.make_node("Mul", ["v1", "c"], ["v2"]),
        h.make_node("Unsqueeze", ["v2", "first"], ["v3"]),
        h.make_node("Concat", ["v3", "rest"], ["v4"], axis=0),
        h.make_node("Reshape", ["i0", "v4"], ["o0"]),
    ]
    constants = {"one": np.array(1), "c": np.array(12), "rest": np.array([-1])}
    assert rejected_operators(make_model, nodes, constants) == []
    sliced = [*nodes[:5], h.make_node("Slice", ["i0", "rest", "v4"], ["o0"])]
    # a slice clamps its end, so an end beyond 32 bits is valid, and an overflow would change the result
    assert "Mul" in rejected_operators(make_model, sliced, constants)


def test_accepts_positions_up_to_the_last_element(make_model: Any) -> None:
    ranged = [h.make_node("Range", ["zero", "size", "one"], ["v1"])]
    masks = [
        *ranged,
        h.make_node("Sub", ["v1", "size"], ["v2"]),
        h.make_node("Add", ["v2", "c"], ["v3"]),
        h.make_node("Abs", ["v3"], ["v4"]),
        h.make_node("Less", ["v4", "v1"], ["v5"]),
        h.make_node("Cast", ["v5"], ["v6"], to=TensorProto.INT64),
        h.make_node("Cast", ["v6"], ["o0"], to=TensorProto.FLOAT),
    ]
    constants = {"one": np.array(1), "c": np.array(2)}
    assert rejected_operators(make_model, masks, constants) == []
    squares = [h.make_node("Mul", ["v1", "v1"], ["v2"]), h.make_node("Cast", ["v2"], ["o0"], to=TensorProto.FLOAT)]
    assert rejected_operators(make_model, [*ranged, *squares], constants) == ["Mul", "Cast"]
    steps = [h.make_node("Mul", ["size", "c"], ["v1"]), h.make_node("Range", ["zero", "v1", "c"], ["v2"])]
    cast = h.make_node("Cast", ["v2"], ["o0"], to=TensorProto.FLOAT)
    assert "Range" in rejected_operators(make_model, [*steps, cast], {"c": _BIG})


def test_uses_the_largest_size_of_the_profiles(make_model: Any) -> None:
    nodes = [h.make_node("Mul", ["size", "size"], ["v1"]), h.make_node("Cast", ["v1"], ["o0"], to=TensorProto.FLOAT)]
    assert rejected_operators(make_model, nodes, {}) == ["Mul", "Cast"]
    # 46340 is the largest number whose square fits in an int32
    assert rejected_operators(make_model, nodes, {}, largest_sizes={"i0": 46340}) == []
    assert rejected_operators(make_model, nodes, {}, largest_sizes={"i0": 46341}) == ["Mul", "Cast"]
    nodes[0] = h.make_node("Mul", ["size", "c"], ["v1"])  # 127 * LIKELY_SIZE fits in an int32
    assert rejected_operators(make_model, nodes, {"c": np.array(127)}) == []
    assert rejected_operators(make_model, nodes, {"c": np.array(127)}, largest_sizes={"i0": LIKELY_SIZE + 2**18}) == [
        "Mul",
        "Cast",
    ]


@pytest.mark.parametrize("operator", ["Pow", "BitShift"])
def test_rejects_fast_growing_operators(make_model: Any, operator: str) -> None:
    attributes = {"direction": "LEFT"} if operator == "BitShift" else {}
    nodes = [
        h.make_node(operator, ["size", "c"], ["v1"], **attributes),
        h.make_node("Cast", ["v1"], ["o0"], to=TensorProto.FLOAT),
    ]
    assert rejected_operators(make_model, nodes, {"c": np.array(9)}) == [operator, "Cast"]


def test_rejects_sizes_that_are_quotients_of_floats(make_model: Any) -> None:
    nodes = [
        h.make_node("Cast", ["size"], ["v1"], to=TensorProto.FLOAT),
        h.make_node("Div", ["v1", "divisor"], ["v2"]),
        h.make_node("Cast", ["v2"], ["v3"], to=TensorProto.INT64),
        h.make_node("Unsqueeze", ["v3", "first"], ["v4"]),
        h.make_node("ConstantOfShape", ["v4"], ["o0"]),
    ]
    assert "Cast" in rejected_operators(make_model, nodes, {"divisor": np.array(1e-9, np.float32)})
    nodes[1] = h.make_node("Floor", ["v1"], ["v2"])
    assert rejected_operators(make_model, nodes, {}) == []


def test_accepts_floats_with_int64_positions(make_model: Any) -> None:
    nodes = [
        h.make_node("OneHot", ["size", "c", "values"], ["v1"]),
        h.make_node("ScatterElements", ["v1", "first", "values"], ["o0"]),
    ]
    constants = {"c": np.array(9), "values": np.array([0, 1], np.float32)}
    assert rejected_operators(make_model, nodes, constants) == []


def test_an_int32_that_becomes_an_int64_fits(make_model: Any) -> None:
    nodes = [
        h.make_node("Cast", ["i0"], ["v1"], to=TensorProto.INT32),
        h.make_node("Cast", ["v1"], ["v2"], to=TensorProto.INT64),
        h.make_node("Cast", ["v2"], ["o0"], to=TensorProto.FLOAT),
    ]
    assert rejected_operators(make_model, nodes, {}) == []
    doubled = [
        nodes[0],
        nodes[1],
        h.make_node("Add", ["v2", "v2"], ["v3"]),
        h.make_node("Cast", ["v3"], ["o0"], to=TensorProto.FLOAT),
    ]
    assert rejected_operators(make_model, doubled, {}) == ["Add", "Cast"]


# Random models are computed with unlimited integers, and with 32 bits. If a model is accepted, both results are equal.


class _Arithmetic:
    """Computes nodes with unlimited integers, or with 32 bits (`narrow`)."""

    def __init__(self, narrow: bool) -> None:
        self._narrow = narrow

    def stored(self, value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31 if self._narrow else value

    def run(self, operator: str, values: list[int]) -> int:
        left, right = (*values, 0)[:2]  # Neg and Abs have one operand
        if operator == "Div":
            result = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1) if right else 0
        else:
            result = {
                "Add": left + right,
                "Sub": left - right,
                "Mul": left * right,
                "Max": max(values),
                "Min": min(values),
                "Neg": -left,
                "Abs": abs(left),
            }[operator]
        return self.stored(result)


_OPERAND_COUNTS = {"Add": 2, "Sub": 2, "Mul": 2, "Max": 2, "Min": 2, "Neg": 1, "Abs": 1, "Div": 2}


def _random_nodes(generator: random.Random) -> tuple[list[Any], dict[str, int]]:
    """Random nodes that compute with `size` and constants, and the constants by name."""
    constants = {f"c{k}": generator.choice([0, 1, -1, 7, 1000, 46341, 2**20, -(2**20), 2**30]) for k in range(4)}
    names = ["size", "size", *constants]
    nodes = []
    for number in range(generator.randint(1, 6)):
        operator = generator.choice(list(_OPERAND_COUNTS))
        recent = names[-3:] if generator.random() < 0.7 else names
        operands = [generator.choice(recent), *(generator.choice(names) for _ in range(_OPERAND_COUNTS[operator] - 1))]
        nodes.append(h.make_node(operator, operands, [f"x{number}"]))
        names.append(f"x{number}")
    return nodes, constants


@pytest.mark.parametrize("seed", range(4))
def test_accepted_models_compute_correct_results_in_32_bits(make_model: Any, seed: int) -> None:
    generator = random.Random(seed)
    accepted_count = rejected_count = wrong_count = 0
    for _ in range(250):
        nodes, constants = _random_nodes(generator)
        last = nodes[-1].output[0]
        as_size = generator.random() < 0.5
        end = [h.make_node("Cast", [last], ["o0"], to=TensorProto.FLOAT)]
        if as_size:
            end = [h.make_node("Unsqueeze", [last, "axis"], ["shape"]), h.make_node("Expand", ["i0", "shape"], ["o0"])]
        arrays = {name: np.array(value) for name, value in constants.items()} | {"axis": np.array([0])}
        is_accepted = not rejected_operators(make_model, [*nodes, *end], arrays, largest_sizes={"i0": 50_000})
        accepted_count, rejected_count = accepted_count + is_accepted, rejected_count + (not is_accepted)
        for size in (0, 1, 3, 46341, 50_000):
            results = []  # with unlimited integers, with 32 bits
            for narrow in (False, True):
                arithmetic, values = _Arithmetic(narrow), {**constants, "size": size}
                for node in nodes:
                    values[node.output[0]] = arithmetic.run(node.op_type, [values[name] for name in node.input])
                results.append(values[last])
            impossible = as_size and not 0 <= results[0] < 2**31  # no tensor has this size, so the run fails anyway
            if results[0] != results[1] and not impossible:
                assert not is_accepted, (nodes, constants, size, results)
                wrong_count += 1
    assert accepted_count > 10 and rejected_count > 10 and wrong_count > 10  # the test has cases of each kind
