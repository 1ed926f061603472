"""On a machine without a GPU, the parser of TensorRT-RTX answers in place of TensorRT's parser, and also refuses what that
parser is known to refuse."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from onnx import helper as h

from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.compiling import parsing
from trtbuild.toolchain.compiling.parsing import Parser
from trtbuild.toolchain.libraries import table


@pytest.fixture(scope="module")
def parser() -> Parser:
    stand_in = table.stand_in("tensorrt", "8.6.0")
    assert stand_in is not None
    # Erf stands for the operators that the parser of 8.6.0 refuses.
    return Parser("tensorrt", "8.6.0", {**asdict(stand_in), "refuses": ["Erf"]})


def test_accepts_a_model_that_both_parsers_accept(parser: Parser, make_mlp: Any) -> None:
    assert parser.find_refusal(make_mlp()[0]) is None
    assert parser.find_refusal(make_mlp(dtype="float16")[0]) is None


def test_rejects_nodes_that_either_parser_refuses_each_with_its_reason(parser: Parser, make_model: Any) -> None:
    nodes = [
        h.make_node("Erf", ["i0"], ["v0"]),
        h.make_node("Gather", ["v0", "i1"], ["v1"]),
        h.make_node("Det", ["v1"], ["v2"]),
        h.make_node("Relu", ["v2"], ["o0"]),
    ]
    refusal = parser.find_refusal(make_model(nodes, [("FLOAT", [4, 2, 2]), ("INT64", [3])], ["FLOAT"], []))
    assert refusal is not None
    assert refusal.nodes == ("n0", "n1", "n2")
    assert refusal.reasons["n0"] == "Erf: the parser of tensorrt 8.6.0 does not take it"
    assert refusal.reasons["n1"] == "Gather: int64 is not a type that an engine computes in"
    assert "Det" in refusal.reasons["n2"]


def test_rejects_bfloat16_for_8_6(parser: Parser, make_model: Any) -> None:
    nodes = [h.make_node("Relu", ["i0"], ["o0"])]
    refusal = parser.find_refusal(make_model(nodes, [("BFLOAT16", [4])], ["BFLOAT16"], []))
    assert refusal is not None and refusal.nodes == ("n0",)


def test_a_refusal_by_rtx_has_no_reasons_for_single_nodes(make_model: Any) -> None:
    nodes = [h.make_node("Det", ["i0"], ["v0"]), h.make_node("Relu", ["v0"], ["o0"])]
    refusal = Parser("tensorrt-rtx").find_refusal(make_model(nodes, [("FLOAT", [4, 2, 2])], ["FLOAT"], [np.zeros(1)]))
    assert refusal is not None and refusal.reasons == {}


def test_the_error_of_a_parser_without_a_gpu_names_its_stand_in(monkeypatch: pytest.MonkeyPatch, make_mlp: Any) -> None:
    class Library:
        def Builder(self, logger: object) -> None:
            raise TypeError("pybind11::init(): factory function returned nullptr")

    import tensorrt_rtx

    library = Library()
    library.ILogger = tensorrt_rtx.ILogger  # type: ignore[attr-defined]
    monkeypatch.setattr(parsing, "load", lambda *_: library)
    with pytest.raises(ToolchainMissing, match=r"the parser of tensorrt 8\.6\.0 needs a GPU") as raised:
        Parser("tensorrt", "8.6.0").find_refusal(make_mlp()[0])
    assert "tensorrt-rtx" in str(raised.value)
