"""Checks of the user's configuration: whether it can be read, whether each remote answers, and whether the keys are valid.

The check of a remote requests two entries with random names. Uploads are not checked, because an uploaded entry would
stay in the remote.
"""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trtbuild import errors
from trtbuild.core.recipes.trust import TrustAll
from trtbuild.core.values.nearest import nearest
from trtbuild.driver import configuration
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.configuration.remotes import name_in_variables
from trtbuild.driver.doctor.finding import Finding, ok, problem, warning
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import ConfigurationError, ConfigurationErrors, RemoteFault, RemoteRefused
from trtbuild.store.transports.kinds import kind_of
from trtbuild.store.transports.settings import RemoteSettings

#: A trusted key gives a warning if it expires within this number of days.
EXPIRY_WARNING_DAYS = 30

#: A remote gives a warning if it takes longer than this many seconds to answer.
SLOW_ANSWER_S = 1.0

#: Variables that users may set, in addition to `configuration.VARIABLES`.
_OTHER_VARIABLES = ("TRTBUILD_CONFIG", "TRTBUILD_CACHE_DIR")
#: The variables of a remote are ``TRTBUILD_REMOTE_<NAME>`` with these endings.
_REMOTE_ENDINGS = ("_TOKEN", "_USER", "_PASSWORD", "_PATIENCE_S", "_CONNECTIONS")
#: Other names that give no warning. `trtbuild worker` sets the first for its processes, and the tests set the second.
_NOT_CONFIGURATION = ("TRTBUILD_WORKER_DIRECTORY", "TRTBUILD_TEST_CACHE")


def check_configuration(folder: Path, request: Request) -> Iterator[Finding]:
    """Yield findings about the configuration, its remotes and its keys."""
    try:
        settings = configuration.load(os.environ, folder)
    except ConfigurationError as error:
        for entry in error.problems if isinstance(error, ConfigurationErrors) else (error,):
            text = f"{entry.where()}: {entry.text}" if entry.where() else entry.text
            yield problem("configuration", text, entry.hint or "see docs/configuration.md")
        return
    yield ok("configuration", _source_names(settings))
    yield from _unknown_variables(os.environ, settings)
    if request.offline and settings.remotes:
        yield ok("remotes", f"not checked (--offline): {', '.join(remote.name for remote in settings.remotes)}")
    elif not settings.remotes:
        yield ok("remotes", "no remotes are configured: results stay on this machine")
    else:
        for remote in settings.remotes:
            yield _check_remote(remote)
    yield from _check_trust(settings.trust, _today())


def _source_names(settings: Configuration) -> str:
    variables = [name for name in configuration.VARIABLES if name in os.environ]
    parts = ([str(settings.path)] if settings.sha256 is not None else []) + variables
    if parts:
        return ", ".join(parts)
    return f"none ({settings.path} does not exist)" if settings.path else "none"


def _unknown_variables(environ: Mapping[str, str], settings: Configuration) -> Iterator[Finding]:
    """Yield a warning for each unknown variable ``TRTBUILD_…``, because a misspelt variable has no effect."""
    known = {*configuration.VARIABLES, *_OTHER_VARIABLES, *_NOT_CONFIGURATION}
    known |= {
        f"TRTBUILD_REMOTE_{name_in_variables(remote.name)}{end}"
        for remote in settings.remotes
        for end in _REMOTE_ENDINGS
    }
    for name in sorted(environ):
        if name.startswith("TRTBUILD_") and name not in known:
            similar_name = nearest(name, known)
            fix = f"unset {name}" + (f", or set {similar_name}" if similar_name is not None else "")
            yield warning("configuration", f"{name} is set, but trtbuild has no such variable", fix)


def _check_remote(settings: RemoteSettings) -> Finding:
    name = f"remote {settings.name}"
    try:
        transport = wiring.open_remote(settings, TrustAll()).transport
    except ConfigurationError as error:
        return problem(name, error.text, error.hint or "see docs/configuration.md")
    try:
        times = []
        for _ in range(2):  # the second request does not include the time to connect
            started = time.perf_counter()
            if settings.read:
                transport.get("ac", secrets.token_hex(32), 1 << 20)
            else:
                transport.has("cas", secrets.token_hex(32))
            times.append(time.perf_counter() - started)
    except RemoteRefused as error:
        return problem(name, f"{_mode_text(settings)}: {error.text}", error.hint or _login_hint(settings))
    except RemoteFault as error:
        fix = error.hint or f"builds go on without it; use --offline, or remove it from {_place_of_remotes()}"
        return warning(name, f"{_mode_text(settings)}: {error.text}", fix)
    finally:
        transport.close()
    text = (
        f"{transport.place} ({_mode_text(settings)}) answers in {min(times) * 1000:.0f} ms{_credentials_note(settings)}"
    )
    if min(times) > SLOW_ANSWER_S:
        return warning(name, text, "each lookup waits this long: put a nearer remote first in the configuration")
    if warnings := transport.report().warnings:
        return warning(name, f"{text}; {'; '.join(warnings)}", "see docs/team-cache.md")
    if kind_of(settings.url).address == "directory" and not Path(unquote(urlsplit(settings.url).path)).is_dir():
        missing = f"{transport.place} ({_mode_text(settings)}): there is no such directory"
        return warning(
            name, missing, "is the share mounted? if so, make the directory, or let the first upload make it"
        )
    return ok(name, text, _upload_hint(settings))


def _mode_text(settings: RemoteSettings) -> str:
    return "read and write" if settings.read and settings.write else "read" if settings.read else "write"


def _upload_hint(settings: RemoteSettings) -> str | None:
    return (
        f"trtbuild cache push --remote {settings.name}  checks whether it accepts uploads" if settings.write else None
    )


def _credentials_note(settings: RemoteSettings) -> str:
    """Return the end of a sentence about the source of the credentials. Empty if the URL has no host."""
    if kind_of(settings.url).address != "host":
        return ""
    from trtbuild.store.transports import credentials

    credential = credentials.find_credentials(settings.name, settings.url)
    return ", without credentials" if credential is None else f", with credentials from {credential.source}"


def _login_hint(settings: RemoteSettings) -> str:
    return f"export TRTBUILD_REMOTE_{name_in_variables(settings.name)}_TOKEN, or write its host into ~/.netrc"


def _place_of_remotes() -> str:
    return "TRTBUILD_REMOTES" if "TRTBUILD_REMOTES" in os.environ else "config.toml"


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _check_trust(settings: TrustSettings, today: datetime.date) -> Iterator[Finding]:
    if not settings.keys and settings.signing_key is None and settings.signing_key_file is None:
        if settings.domain is not None:
            yield warning(
                "trust",
                f"the domain {settings.domain!r} is configured without keys: nothing is signed or verified",
                "trtbuild cache keygen",
            )
        return
    try:
        trust = wiring.trust_policy(settings)
    except ConfigurationError as error:
        text = f"{error.where()}: {error.text}" if error.where() else error.text
        yield problem("trust", text, error.hint or "trtbuild cache keygen")
        return
    reads = ", ".join(trust.read_domains) or "only this machine's signatures"
    writes = trust.own_domain or "only this machine"
    yield ok(
        "trust",
        f"{len(settings.keys)} trusted key{'' if len(settings.keys) == 1 else 's'}; reads {reads}; signs for {writes}",
    )
    for text in trust.warnings:
        yield warning("trust", text, "trtbuild cache keygen  makes a new key; the readers have to trust it")
    for key in settings.keys:
        if key.public_key in settings.revoked:
            yield warning(
                "trust", f"key {key.name!r} is both trusted and revoked, so it is not used", "remove it from keys"
            )
        elif key.expires is not None and key.expires < today:
            text = f"key {key.name!r} expired on {key.expires}: results with its signature are built again"
            yield warning("trust", text, "trust its successor, or change the date")
        elif key.expires is not None and (key.expires - today).days <= EXPIRY_WARNING_DAYS:
            text = f"key {key.name!r} expires on {key.expires}, in {(key.expires - today).days} days"
            yield warning("trust", text, "trtbuild cache keygen, and trust the new key before that day")
    if any(key.expires is not None for key in settings.keys):
        yield from _check_clock_for_expiry()


def _check_clock_for_expiry() -> Iterator[Finding]:
    """Yield a warning if the clock is more than a day behind the time of trtbuild's installation.

    If the clock is behind, expired keys still count as valid.
    """
    installed_s = Path(errors.__file__).stat().st_mtime
    if time.time() < installed_s - 86400:
        yield warning(
            "trust",
            f"keys expire by this machine's clock, which shows {_today()}: that is before trtbuild was installed",
            "set the clock (timedatectl set-ntp true)",
        )
