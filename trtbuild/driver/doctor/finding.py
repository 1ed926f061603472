"""What a check has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and the command that mends it."""

    name: str
    status: Status
    text: str
    fix: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, text: str, hint: str | None = None) -> Finding:
    """All is well; `hint` is what else could be done."""
    return Finding(name, "ok", text, hint)


def warning(name: str, text: str, fix: str) -> Finding:
    """It works, or may not."""
    return Finding(name, "warning", text, fix)


def problem(name: str, text: str, fix: str) -> Finding:
    """Something does not work."""
    return Finding(name, "problem", text, fix)
