"""The result of a check of ``trtbuild doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The subject of a check (`name`), its status, a text about it, and how to correct or improve it."""

    name: str
    status: Status
    text: str
    fix: str | None = None


def ok(name: str, text: str, hint: str | None = None) -> Finding:
    """Return a finding without a problem. `hint` is an optional improvement."""
    return Finding(name, "ok", text, hint)


def warning(name: str, text: str, fix: str) -> Finding:
    """Return a finding about something that may fail."""
    return Finding(name, "warning", text, fix)


def problem(name: str, text: str, fix: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(name, "problem", text, fix)
