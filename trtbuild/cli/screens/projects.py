"""A new project as text: the written files, warnings, and the next commands."""

from __future__ import annotations

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows
from trtbuild.driver.answers.documents import NewProject


def init_lines(document: NewProject) -> list[str]:
    return [
        *align_rows([(entry.action, entry.path, entry.text) for entry in document.files]),
        *(f"{terminal.yellow('warning')}: {text}" for text in document.warnings),
        "next:",
        *(f"  {command}" for command in document.next),
    ]
