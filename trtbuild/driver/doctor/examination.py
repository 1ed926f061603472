"""All checks, in order, and what they come to.

Rules
1. A check returns findings and never raises: what it meets is what it finds.
2. Nothing is changed but files of its own, which it removes.
3. A problem keeps something from working, a warning may; each has the command that mends it (`fix`).
4. A machine without torch is not a fault: it plans, and takes packages that others have built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trtbuild.driver.doctor import interpreter, libraries, machine, project, remotes, storage
from trtbuild.driver.doctor.finding import Finding, problem
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError

Document = dict[str, Any]


def examine(request: Request) -> Document:
    """``trtbuild.doctor/1``: `ok` is false when there is a problem. Raises UsageError where there is no such directory."""
    folder = request.project.absolute()
    if not folder.is_dir():
        raise UsageError(f"{request.project} is no directory", hint="-C names the project's directory")
    found = list(_findings(folder, request))
    return {
        "schema": "trtbuild.doctor/1",
        "ok": all(finding.status != "problem" for finding in found),
        "checks": [finding.to_json() for finding in found],
    }


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
            found = check()
            yield from [found] if isinstance(found, Finding) else list(found)
        except Exception as error:  # rule 1: the machine is not as it is expected to be
            yield problem(name, f"the check itself failed: {type(error).__name__}: {error}", "please report this")
