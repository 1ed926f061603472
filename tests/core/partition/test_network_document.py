"""The JSON document that defines a TensorRT network is read back, and is not confused with an ONNX model."""

from __future__ import annotations

import pytest

from trtbuild.core.partition import network_document


def test_a_written_document_is_read_back() -> None:
    calls = [{"on": None, "call": "add_x"}]
    data = network_document.to_bytes([["FLOAT", [1, "d0"]]], [["float32", 4]], calls, [{"input": 0}])
    assert network_document.is_document(data)
    document = network_document.parse(data)
    assert document["calls"] == calls
    assert document["schema"] == network_document.SCHEMA


def test_an_onnx_model_is_not_a_network_document() -> None:
    assert not network_document.is_document(b"\x08\x09\x12\x07pytorch")
    assert not network_document.is_document(b"")


def test_rejects_another_version() -> None:
    data = network_document.to_bytes([], [], [], []).replace(b"network/1", b"network/2")
    assert network_document.is_document(data)  # otherwise a step would read it as ONNX
    with pytest.raises(ValueError, match=r"not a trtbuild\.network/1 document"):
        network_document.parse(data)


def test_rejects_numbers_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="JSON"):
        network_document.to_bytes([], [], [{"value": float("nan")}], [])
