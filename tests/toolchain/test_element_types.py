"""Types that the parser would change are found, with all that they reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper as h

from trtbuild.toolchain.element_types import NAMES, foreign_nodes
from trtbuild.toolchain.onnx_outline import outline
from trtbuild.toolchain.table import FLAVOURS

RTX = FLAVOURS["tensorrt-rtx"].dtypes


def _foreign(model: bytes) -> dict[str, str]:
    return foreign_nodes(outline(model), RTX)


def test_names_are_those_of_onnx() -> None:
    for number, name in NAMES.items():
        member = onnx.TensorProto.DataType.Name(number).lower()
        assert name.replace("_", "") == {"float": "float32", "double": "float64"}.get(member, member)


def test_a_model_of_native_types_has_none(make_mlp: Any) -> None:
    assert _foreign(make_mlp()[0]) == {}


def test_float64_spreads_until_it_is_cast_or_compared(make_model: Any) -> None:
    nodes = [
        h.make_node("Relu", ["i0"], ["v0"]),
        h.make_node("Add", ["i1", "v0"], ["v1"]),
        h.make_node("Less", ["v1", "i1"], ["v2"]),
        h.make_node("Not", ["v2"], ["o0"]),
        h.make_node("Cast", ["v1"], ["v3"], to=1),
        h.make_node("Relu", ["v3"], ["o1"]),
    ]
    found = _foreign(make_model(nodes, [("FLOAT", [4]), ("DOUBLE", [4])], ["BOOL", "FLOAT"], []))
    assert list(found) == ["n1", "n2", "n4"]
    assert found["n2"] == "Less: float64 is not a type that an engine computes in"


def test_a_constant_or_weight_or_attribute_is_enough(make_model: Any) -> None:
    weights = [np.zeros(4)]
    nodes = [
        h.make_node("ConstantOfShape", ["c0"], ["v0"], value=h.make_tensor("t", 11, [1], [1.0])),
        h.make_node("Gather", ["w0", "i0"], ["v1"]),
        h.make_node("Relu", ["i1"], ["o0"]),
    ]
    model = make_model(nodes, [("INT64", [4]), ("FLOAT", [4])], ["FLOAT"], weights, {"c0": np.array([4])})
    assert list(_foreign(model)) == ["n0", "n1"]


def test_int8_is_at_home_between_quantize_and_dequantize_only(make_model: Any) -> None:
    scale = {"c0": np.array(0.1, np.float32), "c1": np.array(0, np.int8)}
    nodes = [
        h.make_node("QuantizeLinear", ["i0", "c0", "c1"], ["v0"]),
        h.make_node("DequantizeLinear", ["v0", "c0", "c1"], ["v1"]),
        h.make_node("Relu", ["v1"], ["o0"]),
    ]
    assert _foreign(make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], scale)) == {}
    nodes.append(h.make_node("Add", ["v0", "v0"], ["v2"]))
    assert list(_foreign(make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], scale))) == ["n3"]
