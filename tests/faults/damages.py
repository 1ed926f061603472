"""Kinds of damage to the bytes of a file in a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "first bit": lambda data: bytes([data[0] ^ 0x80]) + data[1:],
    "middle bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "a byte short": lambda data: data[:-1],
    "a byte long": lambda data: data + b"\0",
    "a newline long": lambda data: data + b"\n",
    "twice": lambda data: data * 2,
    "64 MB more": lambda data: data + bytes(64 << 20),
    "zeros": lambda data: bytes(len(data)),
    "html": lambda data: b"<!doctype html><title>404</title>",
    "other json": lambda data: b'{"outputFiles":[]}',
    "deep json": lambda data: b"[" * 100_000,
}
