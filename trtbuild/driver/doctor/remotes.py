"""The user's configuration: whether it can be read, whether each remote answers, and whether the keys count.

Remotes are asked for an entry under a random name, so nothing is left there. Whether they take what is written is not
tried: an entry would stay.
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
from trtbuild.core.recipes.trust import Everyone
from trtbuild.core.values.nearest import nearest
from trtbuild.driver import configuration
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.configuration.remotes import variable_part
from trtbuild.driver.doctor.finding import Finding, ok, problem, warning
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import ConfigurationError, ConfigurationErrors, RemoteFault, RemoteRefused
from trtbuild.store.transports.settings import RemoteSettings

#: A trusted key that ends within this many days is told of.
SOON_DAYS = 30

#: Every answer that takes longer is told of, in seconds.
SLOW_S = 1.0

#: Variables that trtbuild goes by, beside those of `configuration`.
_OTHER_VARIABLES = ("TRTBUILD_CONFIG", "TRTBUILD_CACHE_DIR")
#: What a remote's own variables end with.
_OF_REMOTES = ("_TOKEN", "_USER", "_PASSWORD", "_PATIENCE_S", "_CONNECTIONS")
#: Variables of the tests and of the shells' completion.
_NO_CONFIGURATION = ("TRTBUILD_COMPLETE", "TRTBUILD_TEST_CACHE")


def configured(folder: Path, request: Request) -> Iterator[Finding]:
    """The configuration, then each remote and each key that it names."""
    try:
        found = configuration.load(os.environ, folder)
    except ConfigurationError as error:
        for one in error.problems if isinstance(error, ConfigurationErrors) else (error,):
            text = f"{one.where()}: {one.text}" if one.where() else one.text
            yield problem("configuration", text, one.hint or "see docs/configuration.md")
        return
    yield ok("configuration", _sources(found))
    yield from _unknown_variables(os.environ, found)
    if request.offline and found.remotes:
        yield ok("remotes", f"not asked (--offline): {', '.join(remote.name for remote in found.remotes)}")
    elif not found.remotes:
        yield ok("remotes", "none are configured: what is built stays on this machine")
    else:
        for remote in found.remotes:
            yield _remote(remote)
    yield from _trust(found.trust, _today())


def _sources(found: Configuration) -> str:
    variables = [name for name in configuration.VARIABLES if name in os.environ]
    parts = ([str(found.path)] if found.sha256 is not None else []) + variables
    return ", ".join(parts) if parts else f"none ({found.path} is not there)" if found.path else "none"


def _unknown_variables(environ: Mapping[str, str], found: Configuration) -> Iterator[Finding]:
    """Variables that look like trtbuild's, and say nothing: a misspelt one may be a policy that is not in force."""
    known = {*configuration.VARIABLES, *_OTHER_VARIABLES, *_NO_CONFIGURATION}
    known |= {f"TRTBUILD_REMOTE_{variable_part(remote.name)}{end}" for remote in found.remotes for end in _OF_REMOTES}
    for name in sorted(environ):
        if name.startswith("TRTBUILD_") and name not in known:
            like = nearest(name, known)
            fix = f"unset {name}" + (f", or set {like}" if like is not None else "")
            yield warning("configuration", f"{name} is set, and means nothing", fix)


def _remote(settings: RemoteSettings) -> Finding:
    name = f"remote {settings.name}"
    try:
        transport = wiring.open_remote(settings, Everyone()).transport
    except ConfigurationError as error:
        return problem(name, error.text, error.hint or "see docs/configuration.md")
    try:
        times = []
        for _ in range(2):  # the second without the time to connect
            started = time.perf_counter()
            if settings.read:
                transport.get("ac", secrets.token_hex(32), 1 << 20)
            else:
                transport.has("cas", secrets.token_hex(32))
            times.append(time.perf_counter() - started)
    except RemoteRefused as error:
        return problem(name, f"{_mode(settings)}: {error.text}", error.hint or _how_to_log_in(settings))
    except RemoteFault as error:
        fix = error.hint or f"builds go on without it; --offline, or take it out of {_where_remotes_are()}"
        return warning(name, f"{_mode(settings)}: {error.text}", fix)
    finally:
        transport.close()
    text = f"{transport.place} ({_mode(settings)}) answers in {min(times) * 1000:.0f} ms{_who(settings)}"
    if min(times) > SLOW_S:
        return warning(name, text, "a nearer remote, first in the configuration, saves this for every look")
    said = getattr(getattr(transport, "report", lambda: None)(), "warnings", ())
    if said:
        return warning(name, f"{text}; {'; '.join(said)}", "see docs/team-cache.md")
    if settings.url.lower().startswith("file:") and not Path(unquote(urlsplit(settings.url).path)).is_dir():
        missing = f"{transport.place} ({_mode(settings)}): there is no such directory"
        return warning(
            name, missing, "is the share mounted? if so, make the directory, or let the first upload make it"
        )
    return ok(name, text, _untried(settings))


def _mode(settings: RemoteSettings) -> str:
    return "read and write" if settings.read and settings.write else "read" if settings.read else "write"


def _untried(settings: RemoteSettings) -> str | None:
    return f"trtbuild cache push --remote {settings.name}  tries whether it takes records" if settings.write else None


def _who(settings: RemoteSettings) -> str:
    """Where the credentials come from."""
    if not settings.url.lower().startswith("http"):
        return ""
    from trtbuild.store.transports import credentials

    found = credentials.find(settings.name, settings.url)
    return ", without credentials" if found is None else f", with credentials from {found.source}"


def _how_to_log_in(settings: RemoteSettings) -> str:
    return f"export TRTBUILD_REMOTE_{variable_part(settings.name)}_TOKEN, or write its host into ~/.netrc"


def _where_remotes_are() -> str:
    return "TRTBUILD_REMOTES" if "TRTBUILD_REMOTES" in os.environ else "config.toml"


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def _trust(settings: TrustSettings, today: datetime.date) -> Iterator[Finding]:
    """Whom this machine believes, for how long, and whether it can sign."""
    if not settings.keys and settings.signing_key is None and settings.signing_key_file is None:
        if settings.domain is not None:
            yield warning(
                "trust",
                f"the domain {settings.domain!r} is configured, and nothing is signed or judged: there are no keys",
                "trtbuild cache keygen",
            )
        return
    try:
        trust = wiring.trust_in(settings)
    except ConfigurationError as error:
        text = f"{error.where()}: {error.text}" if error.where() else error.text
        yield problem("trust", text, error.hint or "trtbuild cache keygen")
        return
    reads = ", ".join(trust.read_domains) or "what this machine signs alone"
    writes = trust.own_domain or "this machine alone"
    yield ok(
        "trust",
        f"{len(settings.keys)} trusted key{'' if len(settings.keys) == 1 else 's'}; reads {reads}; signs for {writes}",
    )
    for text in getattr(trust, "warnings", ()):
        yield warning("trust", str(text), "trtbuild cache keygen  makes a new key; those who read have to trust it")
    for key in settings.keys:
        if key.public_key in settings.revoked:
            yield warning("trust", f"key {key.name!r} is trusted and revoked: it does not count", "take it out of keys")
        elif key.expires is not None and key.expires < today:
            text = f"key {key.name!r} expired on {key.expires}: what it signed is built again"
            yield warning("trust", text, "trust its successor, or give it another date")
        elif key.expires is not None and (key.expires - today).days <= SOON_DAYS:
            text = f"key {key.name!r} counts until {key.expires}, {(key.expires - today).days} days more"
            yield warning("trust", text, "trtbuild cache keygen, and trust the new key before that day")
    if any(key.expires is not None for key in settings.keys):
        yield from _clock()


def _clock() -> Iterator[Finding]:
    """Expiry goes by this machine's clock. It cannot be earlier than what it runs was written."""
    written_s = Path(errors.__file__).stat().st_mtime
    if time.time() < written_s - 86400:
        yield warning(
            "trust",
            f"keys expire by this machine's clock, which says {_today()}: that is before trtbuild was installed",
            "set the clock (timedatectl set-ntp true)",
        )
