"""Sizes and ages in the configuration and in flags: ``50GiB``, ``30d``."""

from __future__ import annotations

import re

from trtbuild.errors import UsageError

_BYTES_OF_UNIT = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SECONDS_OF_UNIT = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 7 * 86400}

#: The pattern of a number. The digits before the point are limited, because a float of 400 digits is infinite.
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]+)?)"


def size_bytes(text: str) -> int:
    """Parse a size such as ``50GiB`` and return it in bytes. Raises UsageError."""
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _BYTES_OF_UNIT:
        raise UsageError(f"{text!r} is not a size", hint="write a number and a unit: 50GiB, 800MiB, 20GB")
    return int(float(match[1]) * _BYTES_OF_UNIT[match[2].upper()])


def age_s(text: str) -> float:
    """Parse an age such as ``30d`` and return it in seconds. Raises UsageError."""
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-z])", text.strip())
    if match is None or match[2].upper() not in _SECONDS_OF_UNIT:
        raise UsageError(f"{text!r} is not an age", hint="write a number and a unit: 30d, 12h, 90m")
    return float(match[1]) * _SECONDS_OF_UNIT[match[2].upper()]
