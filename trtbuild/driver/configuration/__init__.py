"""The user's and CI's configuration: remotes, whom to believe, and how large the cache may be. docs/configuration.md.

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

`file` reads the file and says in which line something is, `sources` puts it together with the variables, `remotes` and
`trust` say what their entries mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import ConfigurationError

if TYPE_CHECKING:
    from trtbuild.driver.configuration.file import ConfigFile
    from trtbuild.store.remote.settings import RemoteSettings
    from trtbuild.store.signing import TrustedKey

#: The variables, but for those of single remotes: ``TRTBUILD_REMOTE_<NAME>_PATIENCE_S``, ``…_CONNECTIONS``, and their
#: credentials (``…_TOKEN``, ``…_USER``, ``…_PASSWORD``).
VARIABLES = (
    "TRTBUILD_CACHE_MAX_SIZE",
    "TRTBUILD_REMOTES",
    "TRTBUILD_TRUSTED_KEYS",
    "TRTBUILD_REVOKED_KEYS",
    "TRTBUILD_SIGNING_KEY_FILE",
    "TRTBUILD_SIGNING_KEY",
    "TRTBUILD_DOMAIN",
    "TRTBUILD_READ_DOMAINS",
)


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


def load(environ: Mapping[str, str], project: Path) -> Configuration:
    """The configuration of who runs this in `project`. Raises ConfigurationError (or ConfigurationErrors, of several)."""
    path, chosen = config_path(environ)
    file = None
    if path is not None and (chosen or _may_be_there(path)):
        file = _read(path, None if chosen else project)
    if file is None and not any(name in environ for name in VARIABLES):
        return Configuration(path=path)
    from trtbuild.driver.configuration import remotes, trust
    from trtbuild.driver.configuration.sources import Sources

    sources = Sources(environ, file)
    found = Configuration(
        sources.size("TRTBUILD_CACHE_MAX_SIZE", "cache", "max_size"),
        remotes.configured(sources),
        trust.configured(sources),
        path,
        None if file is None else file.sha256,
    )
    sources.raise_problems()
    return found


def _may_be_there(path: str) -> bool:
    """Whether there is something under the path. What cannot be looked at may be a policy that counts."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def config_path(environ: Mapping[str, str]) -> tuple[str | None, bool]:
    """The configuration file's absolute path, and whether ``$TRTBUILD_CONFIG`` names it."""
    if chosen := environ.get("TRTBUILD_CONFIG"):
        return os.path.abspath(expanded(chosen, environ)), True  # noqa: PTH100
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # the XDG Base Directory Specification: a relative one is to be ignored
        base = expanded("~/.config", environ)
    return (f"{base}/trtbuild/config.toml" if base.startswith("/") else None), False


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """A path in which ``~`` stands for the home directory."""
    home = environ.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else os.path.expanduser(path)  # noqa: PTH111


def _read(path: str, project: Path | None) -> ConfigFile | None:
    """The file; not one of `project` (rule 2)."""
    from trtbuild.driver.configuration import file

    if project is not None:
        root = os.path.realpath(project)
        if os.path.commonpath([root, os.path.realpath(path)]) == root:
            raise ConfigurationError(
                f"it lies in the project {root}, and a project cannot say where engines come from",
                file=path,
                hint=f'if it is yours: export TRTBUILD_CONFIG="{path}"',
            )
    return file.read(path, must_exist=project is None)
