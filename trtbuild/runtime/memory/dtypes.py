"""The element types of arrays that are not torch tensors, by torch's names."""

from __future__ import annotations

from trtbuild.core.values.element_types import ELEMENT_TYPES, ElementType

ARRAY_TYPES = {name: element for name, element in ELEMENT_TYPES.items() if element.dlpack is not None}

_ELEMENT_BY_TYPESTR = {element.typestr: element for element in ARRAY_TYPES.values() if element.typestr}
_ELEMENT_BY_CODE = {(element.dlpack, element.bits): element for element in ARRAY_TYPES.values()}


def element_of_typestr(typestr: str) -> ElementType | None:
    """Return the element type of a NumPy type string, such as ``<f4``, or None if it is not supported."""
    return _ELEMENT_BY_TYPESTR.get(typestr.replace("=", "<"))


def element_of_dlpack(code: int, bits: int, lanes: int) -> ElementType | None:
    """Return the element type of a ``DLDataType``, or None if it is not supported."""
    return _ELEMENT_BY_CODE.get((code, bits)) if lanes == 1 else None
