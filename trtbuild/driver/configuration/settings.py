"""What is configured, as values.

Rules
1. It comes from ``$TRTBUILD_CONFIG``, else ``$XDG_CONFIG_HOME/trtbuild/config.toml``; each entry is a variable too, which
   wins over the file as a whole (``TRTBUILD_REMOTES`` replaces all remotes of the file).
2. A project says none of it. The default file is refused inside the project (a home directory that is a checkout): there,
   only ``$TRTBUILD_CONFIG`` can name it. No manifest and no file of a project is read here.
3. What is not understood is an error, never left out: a misspelt `revoked` would believe a stolen key. All problems are
   told at once.
4. A variable that is empty counts as not set, because CI gives empty text for a secret that a fork may not see. But an
   empty ``TRTBUILD_REMOTES`` means no remotes, and an empty ``TRTBUILD_TRUSTED_KEYS`` is an error: all would be believed.
5. Secrets (the signing key, URLs with passwords) are in no message and no repr.
6. Where nothing is configured this costs the look for one file, and imports nothing.
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
    """Whom this machine believes, and what it signs with. No keys: everybody is believed."""

    keys: tuple[TrustedKey, ...] = ()
    #: Public keys that do not count any more, whoever trusts them.
    revoked: frozenset[bytes] = frozenset()
    #: At most one of the two: the file that holds the key, or the key itself.
    signing_key_file: Path | None = None
    signing_key: str | None = field(default=None, repr=False)
    #: What this machine writes, and what it reads, in order (empty: it was not said).
    domain: str | None = None
    read_domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Configuration:
    """What is configured. `cache_max_size` is in bytes."""

    cache_max_size: int | None = None
    remotes: tuple[RemoteSettings, ...] = ()
    trust: TrustSettings = TrustSettings()
    #: Where a file was looked for (None: there is no home directory), and the SHA-256 of what was read (None: no file).
    path: str | None = None
    sha256: str | None = None


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """A path in which ``~`` stands for the home directory."""
    home = environ.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else os.path.expanduser(path)  # noqa: PTH111
