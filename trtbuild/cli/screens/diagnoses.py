"""The findings of `doctor` as text: a line for each check, and below it a line that says how to fix a problem."""

from __future__ import annotations

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import count
from trtbuild.driver.doctor.examination import Diagnosis

_MARKS = {"ok": terminal.green("ok     "), "warning": terminal.yellow("warning"), "problem": terminal.red("PROBLEM")}


def doctor_lines(document: Diagnosis) -> list[str]:
    width = max(len(check.name) for check in document.checks)
    lines = []
    for check in document.checks:
        lines.append(f"{_MARKS[check.status]}  {check.name:{width}}  {check.text}")
        if check.fix:
            lines.append(f"{'':7}  {'':{width}}  → {check.fix}")  # each mark has 7 columns
    problems, warnings = (sum(check.status == word for check in document.checks) for word in ("problem", "warning"))
    if not problems and not warnings:
        return [*lines, "all is well"]
    return [*lines, f"{count(problems, 'problem')}, {count(warnings, 'warning')}"]
