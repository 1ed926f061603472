"""A new project as text: the written files, warnings, and the next commands."""

from __future__ import annotations

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned
from trtbuild.driver.answers.documents import NewProject


def begun(found: NewProject) -> list[str]:
    """The result of ``trtbuild init``."""
    return [
        *aligned([(entry.action, entry.path, entry.text) for entry in found.files]),
        *(f"{terminal.yellow('warning')}: {text}" for text in found.warnings),
        "next:",
        *(f"  {command}" for command in found.next),
    ]
