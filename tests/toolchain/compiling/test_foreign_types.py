"""`foreign_nodes` finds the nodes with foreign types: types in which an engine does not compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx import helper as h

from trtbuild.toolchain.compiling.foreign_types import foreign_nodes
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline

RTX_TYPES = release("tensorrt-rtx", "1.7.1").dtypes


def _foreign(model: bytes) -> dict[str, str]:
    """The nodes with types in which TensorRT-RTX does not compute: name → reason."""
    return foreign_nodes(read_outline(model), RTX_TYPES)


def test_a_model_of_native_types_has_no_foreign_nodes(make_mlp: Any) -> None:
    assert _foreign(make_mlp()[0]) == {}


def test_float64_spreads_until_it_is_cast_or_compared(make_model: Any) -> None:
    nodes = [
        h.make_node("Relu", ["i0"], ["v0"]),
        h.make_node("Add", ["i1", "v0"], ["v1"]),
        h.make_node("Less", ["v1", "i1"], ["v2"]),
        h.make_node("Not", ["v2"], ["o0"]),
        h.make_node("Cast", ["v1"], ["v3"], to=TensorProto.FLOAT),
        h.make_node("Relu", ["v3"], ["o1"]),
    ]
    reasons = _foreign(make_model(nodes, [("FLOAT", [4]), ("DOUBLE", [4])], ["BOOL", "FLOAT"], []))
    assert list(reasons) == ["n1", "n2", "n4"]
    assert reasons["n2"] == "Less: float64 is not a type that an engine computes in"


def test_nodes_with_foreign_constants_weights_or_attributes_are_foreign(make_model: Any) -> None:
    weights = [np.zeros(4)]
    nodes = [
        h.make_node("ConstantOfShape", ["c0"], ["v0"], value=h.make_tensor("t", TensorProto.DOUBLE, [1], [1.0])),
        h.make_node("Gather", ["w0", "i0"], ["v1"]),
        h.make_node("Relu", ["i1"], ["o0"]),
    ]
    model = make_model(nodes, [("INT64", [4]), ("FLOAT", [4])], ["FLOAT"], weights, {"c0": np.array([4])})
    assert list(_foreign(model)) == ["n0", "n1"]


def test_int8_is_allowed_only_between_quantize_and_dequantize(make_model: Any) -> None:
    scale = {"c0": np.array(0.1, np.float32), "c1": np.array(0, np.int8)}
    nodes = [
        h.make_node("QuantizeLinear", ["i0", "c0", "c1"], ["v0"]),
        h.make_node("DequantizeLinear", ["v0", "c0", "c1"], ["v1"]),
        h.make_node("Relu", ["v1"], ["o0"]),
    ]
    assert _foreign(make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], scale)) == {}
    nodes.append(h.make_node("Add", ["v0", "v0"], ["v2"]))
    assert list(_foreign(make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], scale))) == ["n3"]


# int64 values that fit 32 bits (rule 4 of foreign_types).

TENSORRT_8_6 = release("tensorrt", "8.6.0")


def _foreign_in_8_6(model: bytes) -> dict[str, str]:
    """The nodes with types in which TensorRT 8.6 does not compute. It computes int64 in 32 bits."""
    return foreign_nodes(read_outline(model), TENSORRT_8_6.dtypes, narrows_int64=TENSORRT_8_6.narrows_int64)


def test_sizes_and_positions_are_allowed_in_32_bits(make_model: Any) -> None:
    nodes = [
        h.make_node("Shape", ["i0"], ["v0"]),
        h.make_node("Gather", ["v0", "c0"], ["v1"]),
        h.make_node("Mul", ["v1", "c1"], ["v2"]),
        h.make_node("Concat", ["v2", "c1"], ["v3"], axis=0),
        h.make_node("Reshape", ["i0", "v3"], ["v4"]),
        h.make_node("ArgMax", ["v4"], ["v5"], axis=0),
        h.make_node("Gather", ["v4", "v5"], ["o0"]),
    ]
    constants = {"c0": np.array([0]), "c1": np.array([-1])}
    model = make_model(nodes, [("FLOAT", ["d0", 4])], ["FLOAT"], [], constants)
    assert _foreign_in_8_6(model) == {}


def test_int64_inputs_outputs_weights_and_casts_of_data_are_foreign(make_model: Any) -> None:
    nodes = [
        h.make_node("Gather", ["w0", "i1"], ["v0"]),
        h.make_node("Cast", ["i0"], ["v1"], to=TensorProto.INT64),
        h.make_node("Add", ["v1", "c0"], ["v2"]),
        h.make_node("Cast", ["v2"], ["o0"], to=TensorProto.FLOAT),
        h.make_node("ArgMax", ["i0"], ["o1"], axis=0),
        h.make_node("Relu", ["i0"], ["o2"]),
        h.make_node("Gather", ["i0", "w1"], ["v3"]),
        h.make_node("Relu", ["v3"], ["o3"]),
    ]
    weights = [np.zeros(4, np.float32), np.zeros(3, np.int64)]
    outputs = ["FLOAT", "INT64", "FLOAT", "FLOAT"]
    model = make_model(nodes, [("FLOAT", [4]), ("INT64", [4])], outputs, weights, {"c0": np.array([1])})
    reasons = _foreign_in_8_6(model)
    # n7 is not foreign, because the int64 indices of n6 do not make the gathered values foreign (rule 5).
    assert list(reasons) == ["n0", "n1", "n2", "n3", "n4", "n6"]
    assert reasons["n0"] == "Gather: int64 is not a type that an engine computes in"


def test_a_constant_beyond_32_bits_is_foreign_except_in_a_slice(make_model: Any) -> None:
    largest = np.iinfo(np.int64).max
    constants = {
        "c0": np.array([1]),
        "c1": np.array([largest]),
        "c2": np.array([-largest - 1]),
        "c3": np.array([1 << 31]),
    }
    slices = [
        h.make_node("Slice", ["i0", "c0", "c1"], ["v0"]),
        h.make_node("Slice", ["v0", "c2", "c3"], ["o0"]),
    ]
    assert _foreign_in_8_6(make_model(slices, [("FLOAT", [9])], ["FLOAT"], [], constants)) == {}
    for name in ("c1", "c2", "c3"):
        nodes = [
            h.make_node("Shape", ["i0"], ["v0"]),
            h.make_node("Add", ["v0", name], ["v1"]),
            h.make_node("Cast", ["v1"], ["o0"], to=TensorProto.FLOAT),
        ]
        assert list(_foreign_in_8_6(make_model(nodes, [("FLOAT", [9])], ["FLOAT"], [], constants))) == ["n1", "n2"]
    filled = [
        h.make_node("Shape", ["i0"], ["v0"]),
        h.make_node("ConstantOfShape", ["v0"], ["v1"], value=h.make_tensor("t", TensorProto.INT64, [1], [1 << 40])),
        h.make_node("Cast", ["v1"], ["o0"], to=TensorProto.FLOAT),
    ]
    assert list(_foreign_in_8_6(make_model(filled, [("FLOAT", [9])], ["FLOAT"], [], {}))) == ["n1", "n2"]


@pytest.mark.parametrize("attribute", ["value_int", "value_ints"])
@pytest.mark.parametrize(("number", "is_foreign"), [(1 << 40, True), (-(1 << 40), True), (-7, False)])
def test_reads_both_integer_attributes_of_a_constant(
    attribute: str, number: int, is_foreign: bool, make_model: Any
) -> None:
    constant = {attribute: number if attribute == "value_int" else [number]}
    nodes = [
        h.make_node("Constant", [], ["v0"], **constant),
        h.make_node("Shape", ["i0"], ["v1"]),
        h.make_node("Add", ["v0", "v1"], ["v2"]),
        h.make_node("Cast", ["v2"], ["o0"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, [("FLOAT", [9])], ["FLOAT"], [], {})
    assert list(_foreign_in_8_6(model)) == (["n0", "n2", "n3"] if is_foreign else [])
    assert foreign_nodes(read_outline(model), RTX_TYPES) == {}


def test_the_size_of_a_foreign_value_is_foreign_if_no_other_node_is(make_model: Any) -> None:
    nodes = [
        h.make_node("Shape", ["i1"], ["v0"]),
        h.make_node("Expand", ["i0", "v0"], ["o0"]),
    ]
    assert list(_foreign_in_8_6(make_model(nodes, [("FLOAT", [1]), ("INT64", ["d0"])], ["FLOAT"], []))) == ["n0"]
    nodes.append(h.make_node("Gather", ["i0", "i1"], ["o1"]))
    assert list(_foreign_in_8_6(make_model(nodes, [("FLOAT", [1]), ("INT64", ["d0"])], ["FLOAT", "FLOAT"], []))) == [
        "n2"
    ]


# Quantizers to uint8 (rule 3). The parser of TensorRT-RTX 1.7.1 would quantize to int8.


@pytest.mark.parametrize("release_types", [RTX_TYPES, TENSORRT_8_6.dtypes])
def test_a_quantizer_to_uint8_is_refused(make_model: Any, release_types: Any) -> None:
    constants = {"c0": np.array(0.1, np.float32), "c1": np.array(0, np.uint8)}
    nodes = [
        h.make_node("QuantizeLinear", ["i0", "c0", "c1"], ["v0"]),
        h.make_node("Reshape", ["v0", "c2"], ["v1"]),
        h.make_node("DequantizeLinear", ["v1", "c0", "c1"], ["o0"]),
    ]
    model = make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], {**constants, "c2": np.array([2, 2])})
    reasons = foreign_nodes(read_outline(model), release_types)
    assert reasons["n0"] == "QuantizeLinear: an engine quantizes to int8 instead of uint8"


@pytest.mark.parametrize("attributes", [{}, {"output_dtype": TensorProto.UINT8}])
def test_a_quantizer_to_uint8_without_a_constant_zero_point_is_refused(
    make_model: Any, attributes: dict[str, int]
) -> None:
    constants = {"c0": np.array(0.1, np.float32), "c1": np.array(0, np.uint8)}
    quantizer = h.make_node("QuantizeLinear", ["i0", "c0"], ["v0"], **attributes)
    assert list(_foreign(make_model([quantizer], [("FLOAT", [4])], [], [], constants))) == ["n0"]
    copied = [
        h.make_node("Identity", ["c1"], ["v0"]),
        h.make_node("QuantizeLinear", ["i0", "c0", "v0"], ["v1"]),
        h.make_node("Cast", ["c1"], ["v2"], to=TensorProto.INT8),
        h.make_node("QuantizeLinear", ["i0", "c0", "v2"], ["v3"]),
    ]
    assert "n1" in _foreign(make_model(copied, [("FLOAT", [4])], [], [], constants))
    typed = h.make_node("QuantizeLinear", ["i0", "c0"], ["v0"], output_dtype=TensorProto.INT8)
    assert _foreign(make_model([typed], [("FLOAT", [4])], [], [], constants)) == {}


def test_a_quantizer_in_a_nested_graph_is_refused(make_model: Any) -> None:
    result = h.make_tensor_value_info("r", TensorProto.UINT8, [4])
    branch = h.make_graph([h.make_node("QuantizeLinear", ["i0", "c0"], ["r"])], "branch", [], [result])
    nodes = [
        h.make_node("If", ["i1"], ["v0"], then_branch=branch, else_branch=branch),
        h.make_node("DequantizeLinear", ["v0", "c0"], ["o0"]),
    ]
    constants = {"c0": np.array(0.1, np.float32)}
    assert "n0" in _foreign(make_model(nodes, [("FLOAT", [4]), ("BOOL", [])], ["FLOAT"], [], constants))
