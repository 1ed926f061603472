"""The integers that the inputs of an ONNX model accept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper as h

from trtbuild.errors import SourceError
from trtbuild.stages.verify.onnx_models.onnx_inputs import onnx_integer_ends


def model(nodes: list[onnx.NodeProto], *tables: tuple[str, tuple[int, ...]]) -> bytes:
    """Return a model with the inputs i0 to i2. `tables` has the names and shapes of its constants."""
    graph = h.make_graph(
        nodes,
        "partition",
        [h.make_tensor_value_info(f"i{k}", onnx.TensorProto.INT64, ["n"]) for k in range(3)],
        [h.make_tensor_value_info("o0", onnx.TensorProto.FLOAT, None)],
        initializer=[onnx.numpy_helper.from_array(np.zeros(shape, "float32"), name) for name, shape in tables],
    )
    return h.make_model(graph).SerializeToString()


def test_indices_are_inside_the_smallest_table_that_they_index() -> None:
    data = model(
        [
            h.make_node("Cast", ["i0"], ["small"], to=onnx.TensorProto.INT32),
            h.make_node("Unsqueeze", ["small", "axes"], ["wide"]),
            h.make_node("Gather", ["w0", "wide"], ["v0"]),
            h.make_node("Gather", ["w1", "small"], ["v1"], axis=1),
            h.make_node("Gather", ["w0", "i2"], ["o0"]),
        ],
        ("w0", (30, 4)),
        ("w1", (5, 12)),
    )
    assert onnx_integer_ends(data, 3) == [12, 2, 30]  # i1 is not read


def test_indices_of_a_table_of_unknown_size_and_other_integers_are_0_or_1() -> None:
    data = model(
        [
            h.make_node("Gather", ["computed", "i0"], ["v0"]),
            h.make_node("Gather", ["w0", "i0"], ["v1"]),
            h.make_node("Add", ["i1", "i1"], ["v2"]),
            h.make_node("Gather", ["w0", "v2"], ["o0"]),
        ],
        ("w0", (30, 4)),
    )
    assert onnx_integer_ends(data, 2) == [2, 2]


def test_rejects_bytes_that_are_not_an_onnx_model() -> None:
    with pytest.raises(SourceError, match="neither a PyTorch program nor an ONNX model"):
        onnx_integer_ends(b"no model", 1)
