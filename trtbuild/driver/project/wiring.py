"""The composition root: every concrete class is named here, once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.trust import Everyone, Trust
from trtbuild.driver import configuration as configurations
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.project.history import History
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.trail import Trail
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.index import Index
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore

if TYPE_CHECKING:
    from trtbuild.store.remote.store import RemoteStore
    from trtbuild.store.transports.settings import RemoteSettings
    from trtbuild.store.transports.transport import Transport

#: A project's own state: deletable, never shared.
STATE = ".trtbuild"

#: Timings of kernels, by toolchain and GPU.
TIMINGS = f"{STATE}/timing"

#: What workers printed, by step.
LOGS = f"{STATE}/logs"


def store_root(project: Path) -> Path:
    """``$TRTBUILD_CACHE_DIR``, else ``cache/`` of the project."""
    chosen = os.environ.get("TRTBUILD_CACHE_DIR")
    return Path(chosen).expanduser().absolute() if chosen else project / "cache"


def configuration(project: Path) -> Configuration:
    """What the user, or CI, has configured. Raises ConfigurationError."""
    return configurations.load(os.environ, project)


def open_store(project: Path, configured: Configuration | None = None, root: Path | None = None) -> LayeredStore:
    """The store of a project: the local one (at `root`, if given), and the remotes that are configured. Raises
    ConfigurationError."""
    found = configuration(project) if configured is None else configured
    trust = trust_in(found.trust)
    remotes = {settings: open_remote(settings, trust) for settings in found.remotes}
    return LayeredStore(
        open_local(project, trust) if root is None else LocalStore(root, trust),
        [remote for settings, remote in remotes.items() if settings.read],
        [remote for settings, remote in remotes.items() if settings.write],
    )


def open_local(project: Path, trust: Trust | None = None) -> LocalStore:
    """The local store of a project alone. Without `trust` it judges nothing."""
    return LocalStore(store_root(project), trust or Everyone())


def open_remote(settings: RemoteSettings, trust: Trust) -> RemoteStore:
    """A remote. Nothing is asked of it yet. Raises ConfigurationError when something must be installed for it."""
    from trtbuild.store.remote.store import RemoteStore
    from trtbuild.store.transports.patience import Patient

    transport = Patient(_transport(settings), settings.patience_s)
    return RemoteStore(transport, settings.name, trust, connections=settings.connections)


def _transport(settings: RemoteSettings) -> Transport:
    scheme = settings.url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        from trtbuild.store.transports.http import HttpTransport

        return HttpTransport(settings)
    if scheme == "file":
        from trtbuild.store.transports.directory import DirectoryTransport

        return DirectoryTransport(settings)
    from trtbuild.store.transports.objects import ObjectTransport

    return ObjectTransport(settings)


def trust_in(settings: TrustSettings) -> Trust:
    """Whom this machine believes, and how it signs. Raises ConfigurationError."""
    if not settings.keys and settings.signing_key is None and settings.signing_key_file is None:
        return Everyone()
    from trtbuild.driver.configuration import user_keys

    return user_keys.keyring(settings, os.environ)


def file_digests(project: Path) -> FileDigests:
    """Digests of files, memoized in the project's state."""
    return FileDigests(Index(project / STATE / "index"))


def lookups(project: Path, store: LayeredStore, history: History, digests: FileDigests, *, force: bool) -> StoreLookups:
    """What planning asks of the world."""
    from trtbuild.stages.trace.user_code.observe import observe

    def digest(path: str) -> str | None:
        try:
            return digests.sha256(path)
        except OSError:  # as the trace sees a file that cannot be read (`observe.file_digest`)
            return None

    def look(dependency: Dependency) -> str:
        return observe(dependency, project, digest)

    trail = Trail(project / STATE, _believed(store.local.trust))
    return StoreLookups(store, project, history, look, digests, force=force, trail=trail)


def _believed(trust: Trust) -> str:
    """Another text when other signatures count: other keys or domains, or another day where keys expire."""
    policy = trust.to_json()
    if policy is None:
        return ""
    text = " ".join(sorted(f"{name}={part}" for name, of in policy.items() for part in _each(of)))
    return f"{text} on day {int(time.time() // 86400)}" if ";expires=" in text else text


def _each(of: object) -> list[object]:
    return of if isinstance(of, list) else [of]
