"""`Parser.find_refusal` asks NVIDIA's parser whether it accepts a model. The parser gets no weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx import helper as h

from trtbuild.errors import EnvironmentFault
from trtbuild.toolchain.compiling.parsing import Parser
from trtbuild.toolchain.networks.network import ParsedNetwork


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser("tensorrt-rtx")


def test_accepts_a_model_without_its_weights(parser: Parser, make_mlp: Any) -> None:
    for _ in range(2):  # a parser can be used again
        assert parser.find_refusal(make_mlp()[0]) is None


def test_names_exactly_the_rejected_nodes(parser: Parser, make_model: Any) -> None:
    weights = [np.zeros((4, 4), np.float32)]
    nodes = [
        h.make_node("MatMul", ["i0", "w0"], ["v0"]),
        h.make_node("Det", ["v0"], ["v1"]),
        h.make_node("Relu", ["v1"], ["v2"]),
        h.make_node("Unique", ["v2"], ["v3"]),
        h.make_node("Relu", ["v3"], ["o0"]),
    ]
    refusal = parser.find_refusal(make_model(nodes, [("FLOAT", ["d0", 4, 4])], ["FLOAT"], weights))
    assert refusal is not None
    assert refusal.nodes == ("n1", "n3")
    assert refusal.messages == ("n1: Det: UNSUPPORTED_NODE: false", "n3: Unique: UNSUPPORTED_NODE: false")


def test_names_the_node_even_if_the_parsers_error_does_not(parser: Parser, make_model: Any) -> None:
    nodes = [
        h.make_node("Relu", ["i0"], ["v0"]),
        h.make_node("ScatterElements", ["v0", "i1", "i0"], ["v1"], reduction="max"),
        h.make_node("Relu", ["v1"], ["o0"]),
    ]
    refusal = parser.find_refusal(make_model(nodes, [("FLOAT", ["d0", 4]), ("INT64", ["d0", 4])], ["FLOAT"], []))
    assert refusal is not None
    assert refusal.nodes == ("n1",)
    assert refusal.messages == ("n1: ScatterElements: UNSUPPORTED_NODE_ATTR: Unsupported reduction type",)


def test_a_quantizer_beside_a_refused_node_is_accepted(parser: Parser, make_model: Any) -> None:
    """The scale is a weight, so its value is not known here. Its placeholder is not zero, because the parser refuses a
    scale of zero."""
    nodes = [
        h.make_node("QuantizeLinear", ["i0", "w0", "zero"], ["v0"]),
        h.make_node("DequantizeLinear", ["v0", "w0", "zero"], ["v1"]),
        h.make_node("Det", ["v1"], ["o0"]),
    ]
    scale, zero = np.array(0.5, np.float32), np.array(0, np.int8)
    model = make_model(nodes, [("FLOAT", [4, 2, 2])], ["FLOAT"], [scale], {"zero": zero})
    refusal = parser.find_refusal(model)
    assert refusal is not None
    assert refusal.nodes == ("n2",)


class ParserOf8_6:
    """A parser without `supports_model_v2`. It answers as TensorRT 8.6.0 on an H200 answers to the model of the next test.
    Each list of accepted nodes has the flag False, because the parser refuses the model."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        if name == "supports_model_v2":
            raise AttributeError(name)
        return getattr(self._parser, name)

    def supports_model(self, model: bytes, path: str) -> tuple[bool, list[tuple[list[int], bool]]]:
        assert self._parser.supports_model_v2(model, path) is False
        return False, [([0, 1], False), ([3, 4], False)]


def test_the_nodes_beside_a_refused_node_are_accepted_by_8_6(
    parser: Parser, make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    construct = ParsedNetwork.__init__

    def construct_with_8_6(parsed: ParsedNetwork, *arguments: Any) -> None:
        construct(parsed, *arguments)
        parsed._parser = ParserOf8_6(parsed._parser)

    monkeypatch.setattr(ParsedNetwork, "__init__", construct_with_8_6)
    nodes = [
        h.make_node("Relu", ["i0"], ["v0"]),
        h.make_node("Sigmoid", ["v0"], ["v1"]),
        h.make_node("Det", ["v1"], ["v2"]),
        h.make_node("Relu", ["v2"], ["v3"]),
        h.make_node("Exp", ["v3"], ["o0"]),
    ]
    refusal = parser.find_refusal(make_model(nodes, [("FLOAT", [4, 2, 2])], ["FLOAT"], []))
    assert refusal is not None
    assert refusal.nodes == ("n2",)


@pytest.mark.parametrize(
    "nodes",
    [
        [h.make_node("NonZero", ["i0"], ["o0"])],
        [h.make_node("Cast", ["i0"], ["o0"], to=TensorProto.INT16)],
        [h.make_node("DFT", ["i0", "", "axis"], ["o0"])],
    ],
    ids=["nonzero", "int16", "dft"],
)
def test_refuses_nodes_for_which_supports_operator_returns_true(parser: Parser, make_model: Any, nodes: Any) -> None:
    output_type = {"NonZero": "INT64", "Cast": "INT16", "DFT": "FLOAT"}[nodes[0].op_type]
    refusal = parser.find_refusal(make_model(nodes, [("FLOAT", [2, 8, 1])], [output_type], [], {"axis": np.array(1)}))
    assert refusal is not None
    assert refusal.nodes == ("n0",)


def test_rejects_float64_values_that_the_parser_would_convert(parser: Parser, make_model: Any) -> None:
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=TensorProto.DOUBLE),
        h.make_node("Mul", ["v0", "c0"], ["v1"]),
        h.make_node("Cast", ["v1"], ["v2"], to=TensorProto.FLOAT),
        h.make_node("Relu", ["v2"], ["o0"]),
    ]
    model = make_model(nodes, [("FLOAT", [4])], ["FLOAT"], [], {"c0": np.array(1e300)})
    refusal = parser.find_refusal(model)
    assert refusal is not None
    assert refusal.nodes == ("n0", "n1", "n2")


def test_integer_weights_may_be_indices(parser: Parser, make_model: Any) -> None:
    nodes = [h.make_node("Gather", ["i0", "w0"], ["o0"], axis=1)]
    assert parser.find_refusal(make_model(nodes, [("FLOAT", ["d0", 8])], ["FLOAT"], [np.zeros(3, np.int64)])) is None


def test_rejects_bytes_that_are_not_a_model(parser: Parser) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        parser.find_refusal(b"\xff\xff\xff")


def test_rejects_another_version() -> None:
    with pytest.raises(EnvironmentFault):
        Parser("tensorrt-rtx", "1.0.0")
