"""Write weights into an ONNX model or beside it, for onnxruntime and for people. Engines get weights by pointer instead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

Bytes = bytes | bytearray | memoryview

#: In a data file, weights begin at multiples of this number of bytes, so that they can be memory-mapped
#: (onnx.external_data_helper).
_ALIGNMENT = 4096

_FOUR_BITS = (onnx.TensorProto.UINT4, onnx.TensorProto.INT4, onnx.TensorProto.FLOAT4E2M1)


def with_inline_weights(model: bytes, weights: Mapping[str, np.ndarray | Bytes]) -> bytes:
    """Return `model`, a result of `convert`, with `weights` inside. `weights`: name → array or row-major bytes.

    Raises KeyError if a weight that the model reads is missing, and ValueError if its size is wrong. Protobuf raises its
    own error for a result above its limit of 2 GiB.
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
    return bytes(proto.SerializeToString(deterministic=True))


def with_data_file(model: bytes, weights: Mapping[str, Bytes], location: str) -> tuple[bytes, list[tuple[int, Bytes]]]:
    """Return `model`, a result of `convert`, for weights in the file `location` beside it. Also return the contents of
    this file: (offset in bytes, bytes) of each weight, in order. There is no limit of size.

    Raises KeyError if a weight that the model reads is missing, and ValueError if its size is wrong.
    """
    proto = onnx.ModelProto.FromString(model)
    contents: list[tuple[int, Bytes]] = []
    end = 0
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        data = memoryview(weights[tensor.name]).cast("B")
        if data.nbytes != size_bytes(tensor):
            raise ValueError(f"{tensor.name} has {size_bytes(tensor)} bytes; {data.nbytes} were given")
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        del tensor.external_data[:]
        for key, value in (("location", location), ("offset", offset), ("length", data.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        contents.append((offset, data))
        end = offset + data.nbytes
    return bytes(proto.SerializeToString(deterministic=True)), contents


def size_bytes(tensor: onnx.TensorProto) -> int:
    """The size of a tensor's data in bytes. One byte contains two numbers of a 4-bit type."""
    count = int(np.prod(list(tensor.dims), dtype=np.int64))
    if tensor.data_type in _FOUR_BITS:
        return (count + 1) // 2
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
