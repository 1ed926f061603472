"""Write Protobuf's text format (protobuf.dev/reference/protobuf/textformat-spec), as far as ``config.pbtxt`` needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class EnumValue:
    """The name of an enum's value. It is written without quotes."""

    text: str


#: A message is a sequence of fields. A repeated field appears once for each of its messages, or has a list of scalars.
Message: TypeAlias = "Sequence[tuple[str, Value]]"
Value: TypeAlias = "str | int | bool | EnumValue | list[int] | list[str] | tuple[tuple[str, Value], ...]"


def render(message: Message) -> str:
    """Return the text of a message."""
    return "".join(f"{line}\n" for line in _message_lines(message, ""))


def _message_lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message:
        if isinstance(value, tuple):
            yield f"{indent}{name} {{"
            yield from _message_lines(value, indent + "  ")
            yield f"{indent}}}"
        else:
            yield f"{indent}{name}: {_scalar_text(value)}"


def _scalar_text(value: str | int | bool | EnumValue | list[int] | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar_text(item) for item in value)}]" if value else "[]"
    if isinstance(value, EnumValue):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return _string_literal(value) if isinstance(value, str) else str(value)


def _string_literal(text: str) -> str:
    """Return a string literal, with octal escapes for UTF-8 bytes that are not printable ASCII."""
    pieces = []
    for byte in text.encode("utf-8", "surrogateescape"):
        if byte in b'"\\':
            pieces.append("\\" + chr(byte))
        elif 32 <= byte < 127:
            pieces.append(chr(byte))
        else:
            pieces.append(f"\\{byte:03o}")
    return f'"{"".join(pieces)}"'
