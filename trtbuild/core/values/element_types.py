"""The element types of tensors in one table, with their names in PyTorch, ONNX, NumPy, TensorRT and file formats.

None in a column means that trtbuild does not accept the type there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """One element type. `name` is torch's name, without ``torch.``."""

    name: str
    #: Bytes of one element.
    itemsize: int
    #: The number in onnx.TensorProto.DataType.
    onnx: int | None = None
    #: The name in a safetensors file.
    safetensors: str | None = None
    #: The name in tensorrt.DataType.
    tensorrt: str | None = None
    #: ``DLDataTypeCode`` of dlpack.h 1.1, for arrays at run time.
    dlpack: int | None = None
    #: NumPy's type string, for arrays at run time.
    typestr: str | None = None

    @property
    def bits(self) -> int:
        return 8 * self.itemsize


#: Type codes of DLPack.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _FLOAT8_E4M3FN = 0, 1, 2, 4, 6, 10

#: Torch's name → element type.
ELEMENT_TYPES: Mapping[str, ElementType] = {
    element.name: element
    for element in (
        #            name              bytes ONNX safetensors TensorRT DLPack NumPy
        ElementType("bool",            1,  9, "BOOL", "BOOL",  _BOOL,   "|b1"),
        ElementType("uint8",           1,  2, "U8",   "UINT8", _UINT,   "|u1"),
        ElementType("int8",            1,  3, "I8",   "INT8",  _INT,    "|i1"),
        ElementType("int16",           2,  5, "I16",  None,    _INT,    "<i2"),
        ElementType("int32",           4,  6, "I32",  "INT32", _INT,    "<i4"),
        ElementType("int64",           8,  7, "I64",  "INT64", _INT,    "<i8"),
        ElementType("float16",         2, 10, "F16",  "HALF",  _FLOAT,  "<f2"),
        ElementType("bfloat16",        2, 16, "BF16", "BF16",  _BFLOAT, None),
        ElementType("float32",         4,  1, "F32",  "FLOAT", _FLOAT,  "<f4"),
        ElementType("float64",         8, 11, "F64",  None,    _FLOAT,  "<f8"),
        ElementType("float8_e4m3fn",   1, 17, None,   "FP8",   _FLOAT8_E4M3FN),
        ElementType("float8_e4m3fnuz", 1, 18),
        ElementType("float8_e5m2",     1, 19),
        ElementType("float8_e5m2fnuz", 1, 20),
        ElementType("float8_e8m0fnu",  1, 24),
        ElementType("uint16",          2,  4),
        ElementType("uint32",          4, 12),
        ElementType("uint64",          8, 13),
        ElementType("complex32",       4),
        ElementType("complex64",       8, 14),
        ElementType("complex128",     16, 15),
    )
}  # fmt: skip

#: The types of inputs and computations in engines of the newest TensorRT releases. float64 is missing, because TensorRT
#: converts it to float32. int8 is missing, because TensorRT uses it for quantized values only.
ENGINE_TYPES = ("float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8")

BY_ONNX: Mapping[int, ElementType] = {
    element.onnx: element for element in ELEMENT_TYPES.values() if element.onnx is not None
}
BY_SAFETENSORS: Mapping[str, ElementType] = {
    element.safetensors: element for element in ELEMENT_TYPES.values() if element.safetensors is not None
}
BY_TENSORRT: Mapping[str, ElementType] = {
    element.tensorrt: element for element in ELEMENT_TYPES.values() if element.tensorrt is not None
}
