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
