"""What `doctor` found, for a person: a line for each check, and the command that mends it."""

from __future__ import annotations

from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import count

Document = dict[str, Any]

_MARKS = {"ok": terminal.green("ok     "), "warning": terminal.yellow("warning"), "problem": terminal.red("PROBLEM")}


def diagnosed(found: Document) -> list[str]:
    """All checks, and how many of them found something."""
    width = max(len(check["name"]) for check in found["checks"])
    lines = []
    for check in found["checks"]:
        lines.append(f"{_MARKS[check['status']]}  {check['name']:{width}}  {check['text']}")
        if check["fix"]:
            lines.append(f"{'':{9 + width}}  → {check['fix']}")
    problems, warnings = (sum(check["status"] == word for check in found["checks"]) for word in ("problem", "warning"))
    if not problems and not warnings:
        return [*lines, "all is well"]
    return [*lines, f"{count(problems, 'problem')}, {count(warnings, 'warning')}"]
