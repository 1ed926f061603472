"""Numbers of 4 bits in an ONNX file keep their values. Data whose size does not fit its type and shape is an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.errors import SourceError
from trtbuild.stages.trace.sources.onnx_weights import all_tensors, location_of, take_weights

JOB: Any = SimpleNamespace(source=SimpleNamespace(target="m.onnx"), place=lambda *_: {})


def graph(tensor: onnx.TensorProto) -> onnx.GraphProto:
    return h.make_graph([h.make_node("Identity", ["k"], ["y"])], "g", [], [], [tensor])


@pytest.mark.parametrize("kind", [T.INT4, T.UINT4])
@pytest.mark.parametrize("count", [5, 4096])
@pytest.mark.parametrize("raw", [False, True])
def test_numbers_that_share_a_byte_keep_their_values(kind: int, count: int, raw: bool) -> None:
    values = np.arange(count) % 7
    tensor = h.make_tensor("k", kind, [count], values)
    if raw:
        tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "k")
        assert len(tensor.raw_data) == (count + 1) // 2
    proto = graph(tensor)
    assert take_weights(proto, Path(), JOB) == {}
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto.initializer[0]).astype(int), values)


@pytest.mark.parametrize("count", [3, 4096])
def test_rejects_data_whose_size_does_not_match_type_and_shape(count: int) -> None:
    tensor = T(name="k", data_type=T.FLOAT, dims=[count], raw_data=bytes(4 * count - 4))
    with pytest.raises(SourceError, match=f"has {4 * count - 4} bytes; its type and shape need {4 * count}"):
        take_weights(graph(tensor), Path(), JOB)


@pytest.mark.parametrize("count", [3, 4096])
def test_rejects_a_list_of_numbers_that_does_not_match_the_shape(count: int) -> None:
    tensor = T(name="k", data_type=T.FLOAT, dims=[count], float_data=[0.0] * (count - 1))
    with pytest.raises(SourceError, match=r"initializer 'k' of m\.onnx cannot be read"):
        take_weights(graph(tensor), Path(), JOB)


@pytest.mark.parametrize("offset", ["abc", "-4", str(10**30)])
def test_rejects_an_invalid_place_of_external_data(tmp_path: Path, offset: str) -> None:
    (tmp_path / "data").write_bytes(bytes(12))
    tensor = T(name="k", data_type=T.FLOAT, dims=[3], data_location=T.EXTERNAL)
    tensor.external_data.add(key="location", value="data")
    tensor.external_data.add(key="offset", value=offset)
    with pytest.raises(SourceError, match=r"initializer 'k' of m\.onnx"):
        take_weights(graph(tensor), tmp_path, JOB)


def test_a_length_of_0_stands_for_the_size(tmp_path: Path) -> None:
    """As in onnx and onnxruntime."""
    (tmp_path / "data").write_bytes(np.arange(5, dtype=np.float32).tobytes())
    tensor = T(name="k", data_type=T.FLOAT, dims=[3], data_location=T.EXTERNAL)
    for key, value in (("location", "data"), ("offset", "4"), ("length", "0")):
        tensor.external_data.add(key=key, value=value)
    proto = graph(tensor)
    take_weights(proto, tmp_path, JOB)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto.initializer[0]), [1, 2, 3])


def test_the_storage_form_of_numbers_in_nodes_does_not_matter() -> None:
    def taken(tensor: onnx.TensorProto) -> onnx.GraphProto:
        body = h.make_graph([h.make_node("Constant", [], ["c"], value=tensor)], "body", [], [])
        nodes = [h.make_node("Constant", [], ["k"], value=tensor), h.make_node("If", ["k"], ["y"], then_branch=body)]
        proto = h.make_graph(nodes, "g", [], [])
        take_weights(proto, Path(), JOB)
        return proto

    values = np.array([1.5, -2], np.float32)
    assert taken(h.make_tensor("k", T.FLOAT, [2], values)) == taken(onnx.numpy_helper.from_array(values, "k"))


def test_the_external_data_of_constant_nodes_is_read_into_the_graph(tmp_path: Path) -> None:
    def constant(name: str, value: float) -> onnx.NodeProto:
        return h.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.full(4, value, np.float32)))

    result = h.make_tensor_value_info("r", T.FLOAT, [4])
    branch = h.make_graph([constant("r", 2)], "branch", [], [result])
    choice = h.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch)
    nodes = [constant("k", 1), choice, h.make_node("Mul", ["k", "i"], ["y"])]
    proto = h.make_model(h.make_graph(nodes, "g", [], []))
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0, convert_attribute=True
    )
    read = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph
    assert [location_of(tensor) for tensor in all_tensors(read)] == ["d"] * 3
    assert take_weights(read, tmp_path, JOB) == {}
    values = [onnx.numpy_helper.to_array(tensor).tolist() for tensor in all_tensors(read)]
    assert values == [[1] * 4, [2] * 4, [2] * 4]
