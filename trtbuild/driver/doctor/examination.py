"""Run all checks in order, and collect their findings.

Rules
1. A check returns findings and never raises. An unexpected exception becomes a finding.
2. A check changes nothing. It removes the temporary files that it writes.
3. A problem means that something does not work. A warning means that something may not work. Each has the command that
   fixes it (`fix`).
4. A machine without torch is valid: it can plan, and can use packages that were built elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtbuild.driver.doctor import interpreter, libraries, machine, project, remotes, storage
from trtbuild.driver.doctor.finding import Finding, problem
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The findings about this installation. `ok` is false if there is a problem."""

    schema: Literal["trtbuild.doctor/1"] = "trtbuild.doctor/1"
    ok: bool
    checks: Sequence[Finding]


def examine(request: Request) -> Diagnosis:
    """Run all checks for the project of `request`. Raises UsageError if its directory does not exist."""
    folder = request.project.absolute()
    if not folder.is_dir():
        raise UsageError(f"{request.project} is not a directory", hint="-C names the project's directory")
    findings = list(_findings(folder, request))
    return Diagnosis(ok=all(finding.status != "problem" for finding in findings), checks=findings)


def _findings(folder: Path, request: Request) -> Iterator[Finding]:
    checks: list[tuple[str, Callable[[], Finding | Iterable[Finding]]]] = [
        ("python", interpreter.python),
        ("trtbuild", interpreter.installations),
        ("command", interpreter.command),
        ("encoding", machine.text_encoding),
        ("torch", libraries.torch_side),
        ("toolchain", libraries.toolchains),
        ("gpu", machine.gpu),
        ("cache", lambda: storage.cache(folder)),
        ("state", lambda: storage.state(folder)),
        ("clock", lambda: machine.clock(folder)),
        ("configuration", lambda: remotes.configured(folder, request)),
        ("manifest", lambda: project.declared(folder, request.files)),
        ("completion", interpreter.completion),
    ]
    for name, check in checks:
        try:
            result = check()
            yield from [result] if isinstance(result, Finding) else list(result)
        except Exception as error:  # rule 1
            yield problem(name, f"the check itself failed: {type(error).__name__}: {error}", "please report this")
