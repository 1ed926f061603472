"""The configuration of a user or of CI: remotes, keys, workers, runners, and the size of the cache.

`load` makes a `Configuration` from a TOML file and environment variables (docs/configuration.md). `file` reads the file
and finds the lines of entries. `sources` combines file and variables. `remotes`, `trust`, `runners` and `workers`
interpret the entries. `settings` has the dataclasses and the rules. This folder uses no other folder of `driver`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.driver.configuration.settings import Configuration, TrustSettings, WorkersSettings, expand_home
from trtbuild.errors import ConfigurationError

if TYPE_CHECKING:
    from trtbuild.driver.configuration.file import ConfigFile

__all__ = ["VARIABLES", "Configuration", "TrustSettings", "WorkersSettings", "config_path", "expand_home", "load"]

#: The environment variables of the configuration. Each remote has further variables: ``TRTBUILD_REMOTE_<NAME>_TOKEN``,
#: ``…_USER`` and ``…_PASSWORD`` (credentials), ``…_PATIENCE_S`` and ``…_CONNECTIONS``.
VARIABLES = (
    "TRTBUILD_CACHE_MAX_SIZE",
    "TRTBUILD_REMOTES",
    "TRTBUILD_TRUSTED_KEYS",
    "TRTBUILD_REVOKED_KEYS",
    "TRTBUILD_SIGNING_KEY_FILE",
    "TRTBUILD_SIGNING_KEY",
    "TRTBUILD_DOMAIN",
    "TRTBUILD_READ_DOMAINS",
    "TRTBUILD_MATRIX",
    "TRTBUILD_WORKERS",
    "TRTBUILD_WORKERS_CA",
    "TRTBUILD_WORKERS_CERT",
    "TRTBUILD_WORKERS_KEY",
    "TRTBUILD_WORKERS_WAIT",
)


def load(environ: Mapping[str, str], project: Path) -> Configuration:
    """Return the configuration of this user. Raises ConfigurationError, or ConfigurationErrors for several problems."""
    path, from_variable = config_path(environ)
    file = None
    if path is not None and (from_variable or _may_exist(path)):
        file = _read(path, None if from_variable else project)
    if file is None and not any(name in environ for name in VARIABLES):
        return Configuration(path=path)
    from trtbuild.driver.configuration import remotes, runners, trust, workers
    from trtbuild.driver.configuration.sources import Sources

    sources = Sources(environ, file)
    loaded = Configuration(
        cache_max_size=sources.size("TRTBUILD_CACHE_MAX_SIZE", "cache", "max_size"),
        remotes=remotes.read_remotes(sources),
        trust=trust.read_trust(sources),
        workers=workers.read_workers(sources),
        path=path,
        sha256=None if file is None else file.sha256,
        runners=runners.read_runners(sources),
    )
    sources.raise_problems()
    return loaded


def _may_exist(path: str) -> bool:
    """Whether a path exists. True if this cannot be checked, because an unreadable file must not be ignored."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def config_path(environ: Mapping[str, str]) -> tuple[str | None, bool]:
    """The configuration file's absolute path, and whether ``$TRTBUILD_CONFIG`` names it.

    The path is None if ``$TRTBUILD_CONFIG`` names no file and there is no home directory."""
    if named_path := environ.get("TRTBUILD_CONFIG"):
        return os.path.abspath(expand_home(named_path, environ)), True  # noqa: PTH100
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # XDG Base Directory Specification: a relative path must be ignored
        base = expand_home("~/.config", environ)
    return (f"{base}/trtbuild/config.toml" if base.startswith("/") else None), False


def _read(path: str, project: Path | None) -> ConfigFile | None:
    """Read the file. `project` is None if ``$TRTBUILD_CONFIG`` names the file.

    Raises ConfigurationError if the file is invalid or inside `project` (rule 2 of `settings`).
    """
    from trtbuild.driver.configuration import file

    if project is not None:
        root = os.path.realpath(project)
        if os.path.commonpath([root, os.path.realpath(path)]) == root:
            raise ConfigurationError(
                f"the file is inside the project {root}, but a project must not choose the sources of engines",
                file=path,
                hint=f'if it is yours: export TRTBUILD_CONFIG="{path}"',
            )
    return file.read(path, must_exist=project is None)
