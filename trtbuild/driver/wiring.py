"""The composition root: every concrete class is named here, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.core.dependency import Dependency
from trtbuild.driver.history import History
from trtbuild.driver.lookups import StoreLookups
from trtbuild.driver.trail import Trail
from trtbuild.store.fingerprint import FileDigests
from trtbuild.store.index import Index
from trtbuild.store.local import LocalStore

#: A project's own state: deletable, never shared.
STATE = ".trtbuild"

#: What workers printed, by step.
LOGS = f"{STATE}/logs"


def store_root(project: Path) -> Path:
    """``$TRTBUILD_CACHE_DIR``, else ``cache/`` of the project."""
    chosen = os.environ.get("TRTBUILD_CACHE_DIR")
    return Path(chosen).expanduser().absolute() if chosen else project / "cache"


def open_store(root: Path) -> LocalStore:
    """The local store."""
    return LocalStore(root)


def file_digests(project: Path) -> FileDigests:
    """Digests of files, memoized in the project's state."""
    return FileDigests(Index(project / STATE / "index"))


def lookups(project: Path, store: LocalStore, history: History, digests: FileDigests, *, force: bool) -> StoreLookups:
    """What planning asks of the world."""
    from trtbuild.stages.trace.observe import observe

    def digest(path: str) -> str | None:
        try:
            return digests.sha256(path)
        except OSError:  # as the trace sees a file that cannot be read (`observe.file_digest`)
            return None

    def look(dependency: Dependency) -> str:
        return observe(dependency, project, digest)

    return StoreLookups(store, project, history, look, digests, force=force, trail=Trail(project / STATE))


def handler(kind: str, store_root: Path, project: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What a worker of `kind` does with a job."""
    from trtbuild.driver import handlers

    store = LocalStore(store_root)
    if kind == "trace":
        return handlers.trace_handler(store, project)
    if kind == "torch":
        return handlers.torch_handler(store)
    if kind == "engine":
        return handlers.engine_handler(store)
    raise ValueError(f"no worker is called {kind!r}")


def prepare(kind: str) -> None:
    """Load what a worker of `kind` will need for its first job."""
    from trtbuild.driver import handlers

    if kind == "trace":
        handlers.prepare_trace()
    elif kind == "torch":
        handlers.prepare_torch()
