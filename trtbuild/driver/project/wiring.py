"""The composition root, which chooses the classes of a project's store, trust policy and lookups."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.trust import Trust, TrustAll
from trtbuild.driver import configuration as configurations
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.project.folders import STATE_FOLDER
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


def store_root(project: Path) -> Path:
    """``$TRTBUILD_CACHE_DIR``, or the project's directory ``cache/`` if that variable is not set."""
    chosen = os.environ.get("TRTBUILD_CACHE_DIR")
    return Path(chosen).expanduser().absolute() if chosen else project / "cache"


def load_configuration(project: Path) -> Configuration:
    """The configuration from the environment and the configuration file. Raises ConfigurationError."""
    return configurations.load(os.environ, project)


def open_store(project: Path, configured: Configuration | None = None, root: Path | None = None) -> LayeredStore:
    """The local store of a project (at `root`, if given) in front of the configured remotes. Raises ConfigurationError."""
    effective = load_configuration(project) if configured is None else configured
    trust = trust_policy(effective.trust)
    remotes = {settings: open_remote(settings, trust) for settings in effective.remotes}
    return LayeredStore(
        open_local(project, trust) if root is None else LocalStore(root, trust),
        [remote for settings, remote in remotes.items() if settings.read],
        [remote for settings, remote in remotes.items() if settings.write],
    )


def open_local(project: Path, trust: Trust | None = None) -> LocalStore:
    """The local store of a project. If `trust` is None, the store trusts every record."""
    return LocalStore(store_root(project), trust or TrustAll())


def open_remote(settings: RemoteSettings, trust: Trust) -> RemoteStore:
    """The remote cache with these settings. No request is sent.

    Raises ConfigurationError, for example if the Python package for the scheme is not installed.
    """
    from trtbuild.store.remote.store import RemoteStore
    from trtbuild.store.transports.kinds import open_transport
    from trtbuild.store.transports.patience import PatientTransport

    transport = PatientTransport(open_transport(settings), settings.patience_s)
    return RemoteStore(transport, settings.name, trust, connections=settings.connections)


def trust_policy(settings: TrustSettings) -> Trust:
    """The trust policy of this machine, with its signing key. Raises ConfigurationError."""
    if not settings.keys and settings.signing_key is None and settings.signing_key_file is None:
        return TrustAll()
    from trtbuild.driver.configuration import user_keys

    return user_keys.keyring(settings, os.environ)


def file_digests(project: Path) -> FileDigests:
    """The object that computes the digests of files, and stores them in an index in the project's state."""
    return FileDigests(Index(project / STATE_FOLDER / "index"))


def create_lookups(
    project: Path, store: LayeredStore, history: History, digests: FileDigests, *, force: bool
) -> StoreLookups:
    """The lookups for planning, which also read the files of the project and the environment variables."""
    from trtbuild.stages.trace.user_code.observe import observe

    def digest(path: str) -> str | None:
        try:
            return digests.sha256(path)
        except OSError:  # an unreadable file has no digest, as in a trace (`observe.file_digest`)
            return None

    def observe_in_project(dependency: Dependency) -> str:
        return observe(dependency, project, digest)

    trail = Trail(project / STATE_FOLDER, _policy_text(store.local.trust))
    return StoreLookups(store, project, history, observe_in_project, digests, force=force, trail=trail)


def _policy_text(trust: Trust) -> str:
    """A text that identifies a trust policy.

    If a key has an expiry date, the text contains the current day, because the policy changes when the key expires. If this
    machine checks signatures and has no key yet, no other command has the same text: its first signature creates a key, so
    a machine without a key has never signed the links of an earlier command.
    """
    policy = trust.to_json()
    if policy is None:
        return ""
    if trust.own_domain is None:
        return secrets.token_hex(16)
    text = " ".join(sorted(f"{name}={part}" for name, value in policy.items() for part in _as_list(value)))
    return f"{text} on day {int(time.time() // 86400)}" if ";expires=" in text else text


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
