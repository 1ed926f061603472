"""The environment variables of a worker process (rules 2 and 5 of `trtbuild.driver.workers.pool`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT
from trtbuild.driver.workers.kinds import WorkerKind
from trtbuild.stages.trace.user_code.observe import HIDDEN_PREFIXES

#: Variables that an engine worker inherits. They are in no key: they contain paths of libraries, or choose GPUs.
INHERITED = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

#: Variables that no worker inherits, because they change user code (``assert``, ``__debug__``) and are in no key.
_SHELL_ONLY = frozenset({"PYTHONOPTIMIZE"})

#: Variables that may differ between a fork server and its workers, and between a watcher (``trtbuild watch``) and its
#: clients. Variables that begin with `FREE_PREFIX` may differ, too.
#: No library reads them at load time, because they belong to the shell's session, to make, to pytest or to trtbuild.
FREE_VARIABLES = frozenset(
    (
        *("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "WINDOWID", "DISPLAY", "COLORTERM", "STY", "TMUX"),
        *("TMUX_PANE", "TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "VTE_VERSION", "GPG_TTY"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "NO_COLOR", "FORCE_COLOR"),
        *("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKE_TERMOUT", "MAKE_TERMERR", "PYTEST_CURRENT_TEST"),
    )
)
FREE_PREFIX = "TRTBUILD_"


def worker_environment(kind: WorkerKind, gpu: int | None = None) -> dict[str, str]:
    """Return the environment of a worker. An engine worker sees only GPU number `gpu` of this process; None: all GPUs."""
    if kind == "engine":
        environment = {**ENGINE_ENVIRONMENT, **{name: os.environ[name] for name in INHERITED if name in os.environ}}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(gpu, os.environ)
        return environment
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN_PREFIXES) and name not in _SHELL_ONLY
    }
    if kind == "original":
        return {**environment, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.update({"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"})
    if kind == "trace":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def visible_gpu(gpu: int, environ: Mapping[str, str]) -> str:
    """Return the ``CUDA_VISIBLE_DEVICES`` that selects only GPU number `gpu` of a process with the variables `environ`.

    CUDA numbers the GPUs in the order of the variable, and ignores the first invalid entry and all later ones (CUDA C++
    Programming Guide, section "CUDA Environment Variables"). So the result is an entry of the process's variable: a number,
    or the UUID of a GPU or of a MIG device. If the variable has no such entry, the result is `gpu` itself.
    """
    entries = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return entries[gpu] if gpu < len(entries) and entries[gpu] else str(gpu)


def differing_variable(environment: Mapping[str, str], other: Mapping[str, str], *free: str) -> str | None:
    """Return the first variable, by name, that differs between two environments; None if all are equal.

    `FREE_VARIABLES`, variables that begin with `FREE_PREFIX`, and the names in `free` are not compared."""
    for name in sorted((environment.keys() | other.keys()) - FREE_VARIABLES.union(free)):
        if not name.startswith(FREE_PREFIX) and environment.get(name) != other.get(name):
            return name
    return None
