"""Read the processor of a shared library in ELF format, and the names of the libraries that it needs.

The layout is that of the System V ABI, chapters 4 and 5
(https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: ``read(offset, size)`` returns `size` bytes of a file from `offset` on, or fewer at the end of the file.
Read = Callable[[int, int], bytes]

#: ``e_machine`` → the ``<cpu>`` of a platform ``<os>-<cpu>``, such as linux-x86_64.
_PROCESSORS = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SHARED_OBJECT = 3  # e_type
_LOAD, _DYNAMIC = 1, 2  # p_type
_NEEDED, _STRING_TABLE, _STRING_TABLE_SIZE = 1, 5, 10  # d_tag
#: Limits on the number of segments and on the bytes of a table. Without limits, a damaged file could fill the memory.
_MAX_HEADERS, _MAX_BYTES = 4096, 1 << 24


@dataclass(frozen=True)
class SharedLibrary:
    """A shared library. `processor` is the ``<cpu>`` of its platform, such as ``x86_64``.

    `needed` has the names of the libraries that it loads, such as ``libnvinfer.so.10``."""

    processor: str
    needed: tuple[str, ...]


def read_shared_library(read: Read) -> SharedLibrary | None:
    """The shared library that `read` reads.

    None for a file of another format, for a damaged library, and for a library that is not little-endian with 64 bits."""
    try:
        return _read_library(read)
    except (OverflowError, ValueError):  # `seek` does not accept an offset of 2**63 or more
        return None


def _read_library(read: Read) -> SharedLibrary | None:
    header = read(0, 64)
    if len(header) < 64 or header[:4] != b"\x7fELF" or header[4:6] != b"\x02\x01":
        return None
    kind, machine = struct.unpack_from("<HH", header, 16)  # e_type, e_machine
    (table_offset,) = struct.unpack_from("<Q", header, 32)  # e_phoff
    entry_size, count = struct.unpack_from("<HH", header, 54)  # e_phentsize, e_phnum
    if kind != _SHARED_OBJECT or entry_size < 56 or count > _MAX_HEADERS:
        return None
    segments = []
    for number in range(count):
        entry = read(table_offset + number * entry_size, 56)
        if len(entry) < 56:
            return None
        type_, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", entry)
        segments.append((type_, offset, address, length))
    processor = _PROCESSORS.get(machine, f"machine {machine}")
    return SharedLibrary(processor, tuple(_needed(read, segments)))


def _needed(read: Read, segments: list[tuple[int, int, int, int]]) -> Iterator[str]:
    """The entries ``DT_NEEDED`` of the dynamic section."""
    for type_, offset, _, length in segments:
        if type_ != _DYNAMIC:
            continue
        data = read(offset, min(length, _MAX_BYTES))
        entries = [struct.unpack_from("<QQ", data, start) for start in range(0, len(data) - 15, 16)]
        values = dict(entries)
        names = read(
            _file_offset(values.get(_STRING_TABLE, 0), segments), min(values.get(_STRING_TABLE_SIZE, 0), _MAX_BYTES)
        )
        for tag, value in entries:
            if tag == _NEEDED:
                yield names[value:].partition(b"\0")[0].decode("utf-8", "replace")


def _file_offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    """The offset in the file of the bytes that are loaded at `address`; `address` itself if no segment contains it."""
    for type_, offset, start, length in segments:
        if type_ == _LOAD and start <= address < start + length:
            return offset + address - start
    return address
