"""Run all checks in order, and collect their findings.

Rules
1. A check returns findings. If a check raises an exception, this becomes a finding, and the other checks still run.
2. A check changes nothing, and removes its temporary files.
3. A problem means that something does not work. A warning means that something may fail. Both say how to correct it
   (`Finding.fix`), with a command if there is one.
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
    """The findings of all checks. `ok` is false if there is a problem."""

    schema: Literal["trtbuild.doctor/1"] = "trtbuild.doctor/1"
    ok: bool
    checks: Sequence[Finding]


def examine(request: Request) -> Diagnosis:
    """Run all checks for the project of `request`. Raises UsageError if its directory does not exist."""
    folder = request.project.absolute()
    if not folder.is_dir():
        raise UsageError(f"{request.project} is not a directory", hint="-C names the project's directory")
    findings = list(_run_checks(folder, request))
    return Diagnosis(ok=all(finding.status != "problem" for finding in findings), checks=findings)


def _run_checks(folder: Path, request: Request) -> Iterator[Finding]:
    checks: list[tuple[str, Callable[[], Finding | Iterable[Finding]]]] = [
        ("python", interpreter.check_python),
        ("trtbuild", interpreter.check_installations),
        ("command", interpreter.check_command),
        ("encoding", machine.check_text_encoding),
        ("torch", libraries.check_torch_libraries),
        ("toolchain", libraries.check_toolchains),
        ("gpu", machine.check_gpu),
        ("cache", lambda: storage.check_cache(folder)),
        ("state", lambda: storage.check_state(folder)),
        ("clock", lambda: machine.check_clock(folder)),
        ("configuration", lambda: remotes.check_configuration(folder, request)),
        ("manifest", lambda: project.check_manifest(folder, request.files)),
        ("completion", interpreter.completion_hint),
    ]
    for name, check in checks:
        try:
            result = check()
            yield from [result] if isinstance(result, Finding) else list(result)
        except Exception as error:  # rule 1
            yield problem(name, f"the check itself failed: {type(error).__name__}: {error}", "please report this")
