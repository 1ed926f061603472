"""The module, the operator and the types of each layer of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.core.engines.engine_layers import Layer, quantized_types, read_layers
from trtbuild.core.engines.plan_contents import Kernel, PlanContents

NAMES = {"n0": ["encoder.0", "aten.linear.default"], "n1": ["", "aten.relu.default"]}


def layer(name: str, inputs: list[str], outs: list[str], kind: str = "elementwise") -> dict[str, Any]:
    return {"name": name, "type": kind, "inputs": inputs, "outputs": [{"name": out} for out in outs]}


def modules_of_layers(*entries: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [
        (entry.name, entry.module) for entry in read_layers({"schema": "trtbuild.layers/1", "layers": entries}, NAMES)
    ]


def test_a_layer_belongs_to_the_node_whose_name_it_has_with_or_without_a_number() -> None:
    assert modules_of_layers(layer("n0", ["i0"], ["a"]), layer("n0_6", ["a"], ["b"]), layer("n1", ["b"], ["o0"])) == [
        ("n0", "encoder.0"),
        ("n0_6", "encoder.0"),
        ("n1", ""),
    ]


def test_a_layer_that_the_parser_adds_belongs_to_the_layer_that_reads_it() -> None:
    assert modules_of_layers(
        layer("w0", [], ["w0_output"], "constant"),
        layer("ONNXTRT_Broadcast", ["w0_output"], ["wide"], "shuffle"),
        layer("n0", ["i0", "wide"], ["o0"]),
    ) == [("w0", "encoder.0"), ("ONNXTRT_Broadcast", "encoder.0"), ("n0", "encoder.0")]


def test_a_layer_that_the_parser_adds_may_be_listed_after_the_layer_that_reads_it() -> None:
    assert modules_of_layers(layer("n1", ["late"], ["o0"]), layer("ONNXTRT_x", [], ["late"]))[1] == ("ONNXTRT_x", "")


def test_a_layer_that_the_parser_adds_at_the_end_belongs_to_its_input() -> None:
    assert modules_of_layers(
        layer("n1", ["i0"], ["a"]),
        layer("Unnamed", [], ["axis"], "constant"),
        layer("ONNXTRT_cast", ["a"], ["b"], "cast"),
        layer("ONNXTRT_squeeze", ["b", "axis"], ["o0"], "squeeze"),
    ) == [("n1", ""), ("Unnamed", ""), ("ONNXTRT_cast", ""), ("ONNXTRT_squeeze", "")]


def test_a_chain_of_added_layers_at_the_end_may_be_listed_in_reverse_order() -> None:
    assert modules_of_layers(
        layer("ONNXTRT_squeeze", ["b"], ["o0"], "squeeze"),
        layer("ONNXTRT_cast", ["a"], ["b"], "cast"),
        layer("n0", ["i0"], ["a"]),
    ) == [("ONNXTRT_squeeze", "encoder.0"), ("ONNXTRT_cast", "encoder.0"), ("n0", "encoder.0")]


def test_a_layer_without_neighbours_has_no_module() -> None:
    assert modules_of_layers(layer("odd", ["i0"], ["o0"])) == [("odd", None)]


def test_a_layer_has_the_operator_of_its_node() -> None:
    (entry,) = read_layers(
        {"schema": "trtbuild.layers/1", "layers": [layer("n1", ["i0"], ["o0"], "activation")]}, NAMES
    )
    assert entry == Layer("n1", "activation", "", "aten.relu.default")
    assert entry.operator == "aten.relu.default"


@pytest.mark.parametrize(
    "document", [{}, {"schema": "trtbuild.layers/2", "layers": []}, {"schema": "trtbuild.layers/1"}]
)
def test_rejects_other_documents(document: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_layers(document, {})


def test_the_layers_of_a_node_have_the_types_of_its_kernels() -> None:
    entries = [layer(name, ["i0"], [name]) for name in ("n0", "n0_6", "odd")]
    kernels = (
        Kernel("function", "k0", ("n0",), ("float32",), ("int8",)),
        Kernel("fully_connected", "k1", ("n0", "n1"), ("int8",), ("float16",)),
    )
    found = read_layers({"schema": "trtbuild.layers/1", "layers": entries}, NAMES, PlanContents({}, kernels))
    both = (("float32", "int8"), ("float16", "int8"))
    assert [(entry.reads, entry.writes) for entry in found] == [both, both, (None, None)]


def test_quantized_types_are_those_of_the_values_in_a_network() -> None:
    def types_of(*dtypes: str) -> tuple[str, ...]:
        outputs = [{"name": "a", "dtype": dtype} for dtype in dtypes]
        entry = {"name": "n0", "type": "quantize", "inputs": [], "outputs": outputs}
        return quantized_types({"schema": "trtbuild.layers/1", "layers": [entry]})

    assert types_of("float", "int64", "bf16") == ()
    assert types_of("fp4", "half", "int8", "fp8", "int4", "int8") == ("int8", "float8e4m3fn", "int4", "float4e2m1")
    with pytest.raises(ValueError, match="layers/1"):
        quantized_types({"schema": "trtbuild.layers/2", "layers": []})
