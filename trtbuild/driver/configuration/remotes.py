"""What is said of remotes: names, modes and URLs, in ``[[remote]]`` or ``TRTBUILD_REMOTES``.

No message shows the credentials that a URL may hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.configuration.file import ConfigFile, Place
from trtbuild.driver.configuration.sources import FIELDS, Sources
from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.settings import RemoteSettings

MODES = ("r", "w", "rw")
SCHEMES = ("http", "https", "file", "s3", "gs", "az")

#: A name stands in ``TRTBUILD_REMOTES``, in names of variables and in every summary.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
#: A step's `source` in ``--json`` is one of these, or a remote's name.
RESERVED = ("local", "built")

#: Seconds that a remote may be silent, and its parallel connections.
LONGEST_PATIENCE_S = 600.0
MOST_CONNECTIONS = 256

EXAMPLE = "team=rw:https://cache.example"


@dataclass(frozen=True)
class _Entry:
    """A remote as it is written. Fields that were refused are empty."""

    place: Place
    name: str
    mode: str
    url: str
    numbers: Mapping[str, tuple[Any, Place]] = field(default_factory=dict)
    #: Where its fields stand, if not all at one place.
    places: Mapping[str, Place] = field(default_factory=dict)


def configured(sources: Sources) -> tuple[RemoteSettings, ...]:
    """The remotes, in the order in which they are asked. What is wrong goes to the sources' problems."""
    entries = list(_entries(sources))
    _check_apart(sources, entries)
    found = []
    for entry in entries:
        before = len(sources.problems)
        for key, check in (("name", _check_name), ("mode", _check_mode), ("url", _check_url)):
            if value := str(getattr(entry, key)):
                try:
                    check(value)
                except ConfigurationError as error:
                    sources.problem(entry.places.get(key, entry.place), error.text, error.hint)
        default = RemoteSettings(entry.name, entry.url)
        patience_s = _number(sources, entry, "patience_s", LONGEST_PATIENCE_S)
        connections = _number(sources, entry, "connections", MOST_CONNECTIONS)
        if before == len(sources.problems) and entry.name and entry.mode and entry.url:
            found.append(
                RemoteSettings(
                    entry.name,
                    entry.url.rstrip("/"),
                    read="r" in entry.mode,
                    write="w" in entry.mode,
                    patience_s=float(patience_s or default.patience_s),
                    connections=int(connections or default.connections),
                )
            )
    return tuple(found)


def variable_part(name: str) -> str:
    """A remote's name as it stands in its variables, such as ``TRTBUILD_REMOTE_<this>_TOKEN``."""
    return name.upper().replace("-", "_")


def _entries(sources: Sources) -> Iterator[_Entry]:
    text = sources.environ.get("TRTBUILD_REMOTES")
    if text is not None:
        place = Place(variable="TRTBUILD_REMOTES")
        for word in text.split():
            parts = sources.tried(place, lambda: _parts(word))  # noqa: B023
            if parts is not None:
                yield _Entry(place, *parts)
    elif sources.file is not None:
        tables = sources.file.values.get("remote", [])
        for number, table in enumerate(tables if isinstance(tables, list) else ()):
            if isinstance(table, dict):
                yield _table_entry(sources, sources.file, number, table)


def _parts(word: str) -> tuple[str, str, str]:
    """(name, mode, URL) of a word of ``TRTBUILD_REMOTES``. Raises ConfigurationError without a place."""
    name, equals, rest = word.partition("=")
    mode, colon, url = rest.partition(":")
    if not equals or "/" in name:
        raise ConfigurationError(f"{shown(word)!r} has no name", hint=f"write {EXAMPLE}")
    if not colon or url.startswith("//"):
        hint = f"write {name}=rw:{shown(rest)}: r (read), w (write) or rw (both) before the URL"
        raise ConfigurationError(f"remote {name!r} has no mode", hint=hint)
    if not url:
        raise ConfigurationError(f"remote {name!r} has no URL", hint=f"write {EXAMPLE}")
    return name, mode, url


def _table_entry(sources: Sources, file: ConfigFile, number: int, table: Mapping[str, Any]) -> _Entry:
    for key in table:
        if key not in FIELDS["remote"]:
            sources.unknown(file.place("remote", key, nth=number), key, FIELDS["remote"], "fields of [[remote]]")
    texts = {}
    for key, example in (("name", "team"), ("mode", "rw"), ("url", EXAMPLE.partition(":")[2])):
        value = table.get(key, "rw" if key == "mode" else None)
        texts[key] = value.strip() if isinstance(value, str) else ""
        if not texts[key]:
            at = file.place("remote", key, nth=number)
            said = "is not a text" if key in table else "is missing"
            sources.problem(at, f"{key} of a remote {said}", f'write {key} = "{example}"')
    numbers = {
        key: (table[key], file.place("remote", key, nth=number))
        for key in ("patience_s", "connections")
        if key in table
    }
    places = {key: file.place("remote", key, nth=number) for key in texts}
    return _Entry(places["name"], **texts, numbers=numbers, places=places)


def _number(sources: Sources, entry: _Entry, key: str, most: float) -> float | None:
    """A number of a remote: its variable's, else the entry's."""
    whole = key == "connections"
    given = sources.variable(f"TRTBUILD_REMOTE_{variable_part(entry.name)}_{key.upper()}")
    place = given[1] if given is not None else entry.numbers.get(key, (None, entry.place))[1]
    value = entry.numbers[key][0] if given is None and key in entry.numbers else None
    if given is not None:
        try:
            value = int(given[0]) if whole else float(given[0])
        except ValueError:
            value = given[0]
    if value is None:
        return None
    if isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and 0 < value <= most:
        return float(value)
    what = f"a whole number from 1 to {most}" if whole else f"a number of seconds, more than 0 and at most {most:g}"
    sources.problem(place, f"{key} of remote {entry.name!r} is not {what}", f"write {key} = {16 if whole else 4}")
    return None


def _check_apart(sources: Sources, entries: Iterable[_Entry]) -> None:
    """Names, and those of their variables, must tell remotes apart: no credential may go to another remote."""
    by_part: dict[str, str] = {}
    for entry in entries:
        part = variable_part(entry.name)
        if not part:
            continue
        other = by_part.setdefault(part, entry.name) if part in by_part else None
        by_part.setdefault(part, entry.name)
        if other == entry.name:
            sources.problem(entry.place, f"two remotes are called {entry.name!r}", "give one of them another name")
        elif other is not None:
            text = f"remotes {other!r} and {entry.name!r} would have the same variables (TRTBUILD_REMOTE_{part}_…)"
            sources.problem(entry.place, text, "give one of them another name")


def _check_name(name: str) -> None:
    """Raises ConfigurationError without a place."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is no name of a remote", hint="letters, digits, - and _, at most 32, a letter first"
        )
    if name in RESERVED:
        raise ConfigurationError(
            f"no remote may be called {name!r}: that is where a step can come from otherwise", hint="call it team"
        )


def _check_mode(mode: str) -> None:
    """Raises ConfigurationError without a place."""
    if mode not in MODES:
        raise ConfigurationError(f"{mode!r} is no mode", hint="r (read), w (write) or rw (both)")


def _check_url(url: str) -> None:
    """Raises ConfigurationError without a place."""
    from urllib.parse import urlsplit

    if any(character <= " " or character == "\x7f" for character in url):
        raise ConfigurationError(f"{shown(url)!r} has a space or control character in it", hint="write %20 for a space")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        raise ConfigurationError(f"{shown(url)!r} is no URL of a remote", hint=_scheme_hint(url, scheme, separator))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(
            f"{shown(url)!r} is no URL: its host or port cannot be read",
            hint=f"write one such as {EXAMPLE.partition(':')[2]}",
        ) from None
    if "?" in url or "#" in url:
        raise ConfigurationError(
            f"{shown(url)!r} has a query or fragment, and names of entries are added to the URL", hint="leave it out"
        )
    if scheme.lower() == "file":
        _check_directory(parts.netloc, parts.path, rest)
    elif not host:
        what = "host" if scheme.lower().startswith("http") else "bucket"
        raise ConfigurationError(f"{shown(url)!r} has no {what}", hint=f"write {scheme}://{what}/path")
    elif not scheme.lower().startswith("http") and (port is not None or "@" in parts.netloc):
        raise ConfigurationError(
            f"{shown(url)!r} has more than a bucket before its path",
            hint="credentials and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …)",
        )


def _scheme_hint(url: str, scheme: str, separator: str) -> str:
    if url.startswith("/"):
        return f"write file://{shown(url)}"
    if not separator:
        return f"write one such as {EXAMPLE.partition(':')[2]}, file:///mnt/cache or s3://bucket/prefix"
    return suggestion(scheme, SCHEMES, "schemes")


def _check_directory(host: str, path: str, rest: str) -> None:
    if host == "~" or rest.startswith(("~", "./", "../")) or host not in ("", "localhost"):
        raise ConfigurationError(
            f"'file://{rest}' is not an absolute path", hint="write three slashes and the whole path: file:///mnt/cache"
        )
    if path.strip("/") == "":
        raise ConfigurationError("the root of the file system is no cache", hint="name a directory: file:///mnt/cache")
    if ".." in path.split("/"):
        raise ConfigurationError(f"'file://{rest}' has .. in it", hint="write the path without it")


def shown(url: str) -> str:
    """A URL, or what was meant as one, without what could be credentials or a signature."""
    head, separator, rest = url.partition("://")
    if not separator:
        head, separator, rest = "", "", url
    place, slash, path = rest.partition("/")
    if "@" in rest:  # a password may hold a slash that was not escaped
        place, slash, path = ("…@" + rest.rpartition("@")[2]).partition("/")
    return f"{head}{separator}{place}{slash}{path}".partition("?")[0]
