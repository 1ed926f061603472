"""The values of the configuration.

Rules
1. The file is ``$TRTBUILD_CONFIG``, or by default ``$XDG_CONFIG_HOME/trtbuild/config.toml`` or
   ``~/.config/trtbuild/config.toml``. Each entry also has an environment variable, which replaces the entry completely
   (``TRTBUILD_REMOTES`` replaces all remotes).
2. A project cannot set any of these values, because `configuration.load` does not look for a file in the project. If the
   home directory is a project, the default file is inside the project. It is rejected unless ``$TRTBUILD_CONFIG`` names it.
3. An unknown entry is an error: if a misspelt `revoked` were ignored, a stolen key would stay trusted. All problems are
   reported together.
4. An empty variable counts as not set, because CI passes an empty string for a secret that it hides from forks. There
   are two exceptions. An empty ``TRTBUILD_REMOTES`` means no remotes. An empty ``TRTBUILD_TRUSTED_KEYS`` is an error:
   if it were ignored, all results might be trusted.
5. Messages and reprs contain no secrets (the signing key, URLs with passwords).
6. If there is no file and no variable, `load` imports no other module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtbuild.store.transports.settings import RemoteSettings
    from trtbuild.store.trust.signing import TrustedKey


@dataclass(frozen=True)
class TrustSettings:
    """The trusted keys, the signing key, and the domains (names for the origins of records).

    Without trusted keys and without a signing key, all results are trusted.
    """

    keys: tuple[TrustedKey, ...] = ()
    #: Public keys that are never trusted, even if `keys` lists them.
    revoked: frozenset[bytes] = frozenset()
    #: The file of the signing key, or the key itself. At most one of the two is set.
    signing_key_file: Path | None = None
    signing_key: str | None = field(default=None, repr=False)
    #: The domain of the records that this machine writes. None: not configured.
    domain: str | None = None
    #: The domains of the records that this machine reads, in order of preference. Empty: not configured.
    read_domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkersSettings:
    """The Dask scheduler whose workers compile engines (None: this machine compiles them), and the files for TLS."""

    scheduler: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    #: How long a build waits for a worker that can compile an engine.
    wait_s: float = 60.0


@dataclass(frozen=True)
class Configuration:
    """A user's configuration. `cache_max_size` is in bytes."""

    cache_max_size: int | None = None
    remotes: tuple[RemoteSettings, ...] = ()
    trust: TrustSettings = TrustSettings()
    workers: WorkersSettings = WorkersSettings()
    #: The expected path of the configuration file. None: the user has no home directory.
    path: str | None = None
    #: The SHA-256 of the file's bytes. None: no file was read.
    sha256: str | None = None
    #: SM → the labels of CI's runners that have a GPU of this SM.
    runners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """Return a path with ``~`` replaced by the home directory."""
    home = environ.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else os.path.expanduser(path)  # noqa: PTH111
