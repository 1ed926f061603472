"""The element types of ONNX, as PyTorch and TensorRT name them."""

from __future__ import annotations

#: onnx.TensorProto.DataType → torch's name, as in `Flavour.dtypes`.
NAMES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    19: "float8_e5m2",
}
#: onnx.TensorProto.DataType → tensorrt.DataType, of what may be an input or output.
TENSORRT_TYPES = {1: "FLOAT", 2: "UINT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}
