"""Weights are inserted into an ONNX model, or written to a data file beside it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from trtbuild.stages.convert.weights import size_bytes, with_data_file, with_inline_weights


def test_weights_are_inserted_by_name_as_arrays_or_bytes(lowered_case: Any, converted: Any) -> None:
    model, weights = converted("linear").model, lowered_case("linear").weights()
    as_bytes = {name: value.tobytes() for name, value in weights.items()}
    assert with_inline_weights(model, weights) == with_inline_weights(model, as_bytes)
    proto = onnx.ModelProto.FromString(with_inline_weights(model, weights))
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    np.testing.assert_array_equal(arrays["w0"], weights["w0"])


def test_an_array_that_is_not_contiguous_is_inserted_in_row_major_order(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("linear").weights()
    column_major = {**weights, "w0": np.asfortranarray(weights["w0"])}
    assert with_inline_weights(converted("linear").model, column_major) == with_inline_weights(
        converted("linear").model, weights
    )


def test_accepts_missing_unused_weights(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("unused").weights()
    used = {t.name for t in onnx.ModelProto.FromString(converted("unused").model).graph.initializer}
    assert len(used) < len(weights)
    assert with_inline_weights(converted("unused").model, {name: weights[name] for name in used})


def test_rejects_missing_weights_and_wrong_sizes(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("linear").weights()
    with pytest.raises(KeyError):
        with_inline_weights(converted("linear").model, {"w0": weights["w0"]})
    with pytest.raises(ValueError, match="w0 has 128 bytes; 4 were given"):
        with_inline_weights(converted("linear").model, {**weights, "w0": b"abcd"})


def test_a_data_file_has_the_weights_at_the_offsets_in_the_model(
    lowered_case: Any, converted: Any, tmp_path: Path
) -> None:
    model = converted("linear").model
    weights = {name: value.tobytes() for name, value in lowered_case("linear").weights().items()}
    data, contents = with_data_file(model, weights, "linear.onnx.data")
    (tmp_path / "linear.onnx").write_bytes(data)
    with open(tmp_path / "linear.onnx.data", "wb") as file:
        for offset, piece in contents:
            file.seek(offset)
            file.write(piece)
    assert [offset % 4096 for offset, _ in contents] == [0] * len(weights) and len(weights) > 1
    onnx.checker.check_model(str(tmp_path / "linear.onnx"), full_check=True)
    loaded = onnx.load(tmp_path / "linear.onnx")  # with the data file
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in loaded.graph.initializer}
    assert {name: arrays[name] for name in weights} == weights
    with pytest.raises(ValueError, match="w0 has 128 bytes; 4 were given"):
        with_data_file(model, {**weights, "w0": b"abcd"}, "linear.onnx.data")


def test_a_data_file_can_have_more_than_2_gib(lowered_case: Any, converted: Any) -> None:
    """Both weights are the same memory mapping. The mapping takes no memory, because nothing reads it."""
    proto = onnx.ModelProto.FromString(converted("linear").model)
    for tensor in proto.graph.initializer:
        tensor.ClearField("dims")
        tensor.dims.extend([3 << 28])
    weight = mmap.mmap(-1, 3 << 30)
    names = [tensor.name for tensor in proto.graph.initializer]
    data, contents = with_data_file(proto.SerializeToString(), dict.fromkeys(names, memoryview(weight)), "data")
    offsets = [
        entry.value
        for tensor in onnx.ModelProto.FromString(data).graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets == [str(offset) for offset, _ in contents] == ["0", str(3 << 30)]


@pytest.mark.parametrize("type_", ["UINT4", "INT4", "FLOAT4E2M1"])
def test_two_numbers_with_four_bits_are_in_one_byte(type_: str) -> None:
    tensor = onnx.TensorProto(dims=[3, 3], data_type=onnx.TensorProto.DataType.Value(type_))
    assert size_bytes(tensor) == 5
