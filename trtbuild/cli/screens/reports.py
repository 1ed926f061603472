"""The result of ``trtbuild report`` as text."""

from __future__ import annotations

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, size
from trtbuild.driver.reports.report_file import WrittenReport


def report_lines(document: WrittenReport) -> list[str]:
    about = f"the build of {document.started.replace('T', ' ').replace('Z', ' UTC')}: {document.status}"
    return align_rows([("report", terminal.bold(document.path), terminal.dim(f"{size(document.size)}, {about}"))])
