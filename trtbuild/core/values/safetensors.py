"""Reads and writes the bytes of safetensors files (https://github.com/huggingface/safetensors, "Format").

The first eight bytes are the header's length, little-endian. The header is JSON: name → dtype, shape, data_offsets. The
data follows without gaps. Tensors are little-endian and row-major.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from trtbuild.core.values.element_types import BY_SAFETENSORS

#: The size of the field in front of the header.
LENGTH_BYTES = 8
_METADATA = "__metadata__"
#: Torch's name of a dtype → the format's name.
_NAMES = {element.name: name for name, element in BY_SAFETENSORS.items()}
#: The limit that the format sets.
_LARGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a file. `dtype` is torch's name, such as ``float32``.

    Its bytes are ``data[begin:end]``. `data` is the part of the file after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_length(head: bytes, size_bytes: int) -> int:
    """The header's length in bytes. `head` is the start of a file of `size_bytes`. Raises ValueError."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little") if len(head) >= LENGTH_BYTES else 0
    if not 2 <= length <= min(_LARGEST_HEADER_BYTES, size_bytes - LENGTH_BYTES):
        raise ValueError("its header's length is wrong")
    return length


def read_entries(header: bytes, size_bytes: int) -> list[TensorEntry]:
    """The tensors in the order of their data, from the header of a file of `size_bytes`. Raises ValueError."""
    result = [_entry(name, fields) for name, fields in _parse(header).items() if name != _METADATA]
    result.sort(key=lambda entry: (entry.begin, entry.end))
    end = 0
    for entry in result:
        if entry.begin != end:
            raise ValueError(f"tensor {entry.name!r} begins at byte {entry.begin} of the data, not at {end}")
        end = entry.end
    described_bytes = LENGTH_BYTES + len(header) + end
    if described_bytes != size_bytes:
        raise ValueError(
            f"its header describes a file of {described_bytes} bytes, but the file has {size_bytes}: "
            "it was cut off or added to"
        )
    return result


def read_tensors(data: bytes) -> Iterator[tuple[TensorEntry, bytes]]:
    """The tensors of a file with the content `data`, each with its bytes. Raises ValueError."""
    start = LENGTH_BYTES + header_length(data, len(data))
    for entry in read_entries(data[LENGTH_BYTES:start], len(data)):
        yield entry, data[start + entry.begin : start + entry.end]


def has_dtype(dtype: str) -> bool:
    """Whether `to_bytes` can store tensors of `dtype`, which is torch's name."""
    return dtype in _NAMES


def to_bytes(
    tensors: Iterable[tuple[str, str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The content of a file with these tensors, in this order.

    Each tensor is given by its name, torch's name of its dtype, its shape and its bytes. Raises KeyError for a dtype
    that the format does not have."""
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    pieces: list[bytes] = []
    end = 0
    for name, dtype, shape, data in tensors:
        offsets = [end, end + len(data)]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": offsets}
        pieces.append(data)
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of 8 bytes
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *pieces])


def metadata_of(data: bytes) -> dict[str, str]:
    """The metadata of a file with the content `data`; empty if the file has no metadata. Raises ValueError."""
    metadata = _parse(data[LENGTH_BYTES : LENGTH_BYTES + header_length(data, len(data))]).get(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata does not map names to texts")
    return metadata


def _parse(header: bytes) -> dict[str, Any]:
    try:
        members = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ValueError("its header is not an object")
    return members


def _entry(name: str, fields: Any) -> TensorEntry:
    try:
        element = BY_SAFETENSORS[fields["dtype"]]
        shape = tuple(index(length) for length in fields["shape"])
        begin, end = (index(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the entry of tensor {name!r} is not understood: {fields!r}") from None
    needed_bytes = element.itemsize * math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= begin <= end or end - begin != needed_bytes:
        raise ValueError(
            f"tensor {name!r} has {end - begin} bytes where {element.name}{list(shape)} needs {needed_bytes}"
        )
    return TensorEntry(name, element.name, shape, begin, end)
