"""A new project, for a person: what was written, what is missing, what to do next."""

from __future__ import annotations

from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned

Document = dict[str, Any]


def begun(found: Document) -> list[str]:
    """What `init` has done."""
    return [
        *aligned([(entry["action"], entry["path"], entry["text"]) for entry in found["files"]]),
        *(f"{terminal.yellow('warning')}: {text}" for text in found["warnings"]),
        "next:",
        *(f"  {command}" for command in found["next"]),
    ]
