"""Element types as arrays outside torch name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """`name` is torch's, without the prefix. `typestr` is NumPy's, which lacks some; `code` and `bits` are DLPack's
    (``DLDataTypeCode``, dlpack.h 1.0), one lane each."""

    name: str
    itemsize: int
    typestr: str | None
    code: int
    bits: int


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

ELEMENT_TYPES: Mapping[str, ElementType] = {
    element.name: element
    for element in (
        ElementType("bool", 1, "|b1", _BOOL, 8),
        ElementType("uint8", 1, "|u1", _UINT, 8),
        ElementType("int8", 1, "|i1", _INT, 8),
        ElementType("int16", 2, "<i2", _INT, 16),
        ElementType("int32", 4, "<i4", _INT, 32),
        ElementType("int64", 8, "<i8", _INT, 64),
        ElementType("float16", 2, "<f2", _FLOAT, 16),
        ElementType("bfloat16", 2, None, _BFLOAT, 16),
        ElementType("float32", 4, "<f4", _FLOAT, 32),
        ElementType("float64", 8, "<f8", _FLOAT, 64),
        # 10 is kDLFloat8_e4m3fn of dlpack 1.1.
        ElementType("float8_e4m3fn", 1, None, 10, 8),
    )
}

_BY_TYPESTR = {element.typestr: element for element in ELEMENT_TYPES.values() if element.typestr}
_BY_CODE = {(element.code, element.bits): element for element in ELEMENT_TYPES.values()}


def of_typestr(typestr: str) -> ElementType | None:
    """The type of a NumPy type string, such as ``<f4``; None where there is none."""
    return _BY_TYPESTR.get(typestr.replace("=", "<"))


def of_dlpack(code: int, bits: int, lanes: int) -> ElementType | None:
    """The type of a ``DLDataType``; None where there is none."""
    return _BY_CODE.get((code, bits)) if lanes == 1 else None
