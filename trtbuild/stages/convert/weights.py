"""An ONNX model with its weights inside, for onnxruntime and for people; engines take them by pointer instead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

Bytes = bytes | bytearray | memoryview


def materialize(model: bytes, weights: Mapping[str, np.ndarray | Bytes]) -> bytes:
    """`model` (as `convert` leaves it) with the logical row-major bytes of its external weights, by their names, inlined.

    Weights that the model does not read may be missing. Raises KeyError for one that it reads, ValueError when a size
    does not fit, or the result would not fit into a protobuf message (2 GiB).
    """
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        value = weights[tensor.name]
        raw = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else bytes(value)
        if len(raw) != size_bytes(tensor):
            raise ValueError(f"{tensor.name} has {size_bytes(tensor)} bytes; {len(raw)} were given")
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
        tensor.raw_data = raw
    return proto.SerializeToString(deterministic=True)


def size_bytes(tensor: onnx.TensorProto) -> int:
    """The size of a tensor's data. No weight has a type of less than a byte."""
    return (
        int(np.prod(list(tensor.dims), dtype=np.int64))
        * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    )
