"""The values of YAML scalars, by the core schema of YAML 1.2. PyYAML itself follows YAML 1.1.

Rules
1. Only ``true`` and ``false`` (also True, TRUE, …) are booleans. ``yes``, ``no``, ``on`` and ``off`` are text.
2. Numbers are decimal integers, ``0x`` and ``0o`` integers, and floats (``1e3`` is 1000.0). Dates, ``1:30`` and
   ``1_000`` are text. An integer with a leading zero is rejected. YAML 1.1 reads it in base 8, and YAML 1.2 in base 10.
3. A quoted or block scalar is text.
4. Half of a UTF-16 surrogate pair (``"\\ud800"``) is rejected, because it cannot be encoded in a file or a path.
5. NaN is rejected: it is not equal to itself, so a step with a NaN would never be up to date. Infinity (``.inf``) is
   allowed, but a number that is too large for a float is rejected.
6. The tags ``!!str``, ``!!int``, ``!!float``, ``!!bool`` and ``!!null`` are allowed if the text is a value of that type. A
   scalar with the tag ``!`` is text. Other tags are rejected.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

Scalar: TypeAlias = "bool | int | float | str | None"

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z", re.ASCII)
_HEX_OR_OCTAL = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_INFINITY = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z", re.ASCII)
_NAN = frozenset({".nan", ".NaN", ".NAN"})
#: The most digits of an integer. Python also limits the length of integers that it parses.
_INT_DIGITS = 100

_TAG_PREFIX = "tag:yaml.org,2002:"
_TYPES_BY_TAG: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (type(None),),
}


class InvalidScalar(ValueError):
    """A scalar that is not allowed in a manifest."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


def unquoted_value(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises InvalidScalar."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    # Most scalars are names. The first character shows this faster than a regular expression.
    if text[0] not in "+-.0123456789":
        return text
    if _INT.match(text):
        digits = text.lstrip("+-")
        if len(digits) > _INT_DIGITS:
            raise InvalidScalar(
                f"a number of {len(digits)} digits", f"at most {_INT_DIGITS} digits; quote it if it is text"
            )
        if len(digits) > 1 and digits[0] == "0":
            raise InvalidScalar(
                f"{text} is read differently by different YAML versions (leading zero)",
                f"write {int(text)}, or {text!r} in quotes if it is text",
            )
        return int(text)
    if _HEX_OR_OCTAL.match(text):
        if len(text) > _INT_DIGITS:
            raise InvalidScalar(
                f"a number of {len(text)} digits", f"at most {_INT_DIGITS} digits; quote it if it is text"
            )
        return int(text, 0)
    if _FLOAT.match(text):
        number = float(text)
        if math.isinf(number):
            raise InvalidScalar(f"{text} is too large for a float", "write .inf if infinity is meant")
        return number
    if infinity := _INFINITY.match(text):
        return -math.inf if infinity[1] == "-" else math.inf
    if text in _NAN:
        raise InvalidScalar(
            f"{text} (not a number) is not allowed",
            "it is not equal to itself, so no step could be up to date",
        )
    return text


def tagged_value(text: str, tag: str | None, is_unquoted: bool) -> Scalar:
    """The value of a scalar. `is_unquoted` is False for quoted and for block scalars. Raises InvalidScalar."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidScalar("half of a surrogate pair is not a character", "write the whole character")
    if tag is None:
        return unquoted_value(text) if is_unquoted else text
    if tag in ("!", f"{_TAG_PREFIX}str"):
        return text
    name = tag.removeprefix(_TAG_PREFIX)
    kinds = _TYPES_BY_TAG.get(name) if tag.startswith(_TAG_PREFIX) else None
    if kinds is None:
        raise InvalidScalar(f"unknown tag {tag_text(tag)}", "write the value without a tag")
    value = unquoted_value(text)
    if type(value) not in kinds:
        raise InvalidScalar(f"{text!r} is not a value of the tag !!{name}", "write the value without a tag")
    return float(value) if name == "float" and isinstance(value, int) else value


def tag_text(tag: str) -> str:
    """A tag as it is written in a manifest, such as ``!!int``."""
    return f"!!{tag.removeprefix(_TAG_PREFIX)}" if tag.startswith(_TAG_PREFIX) else tag
