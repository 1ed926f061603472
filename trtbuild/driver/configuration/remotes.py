"""The configured remotes: names, modes and URLs, from ``[[remote]]`` or ``TRTBUILD_REMOTES``.

Messages never show the credentials in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.driver.configuration.file import ConfigFile, Place
from trtbuild.driver.configuration.sources import FIELDS, Sources
from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.kinds import kind_of
from trtbuild.store.transports.settings import RemoteSettings

MODES = ("r", "w", "rw")

#: The names that remotes may have. Names are parts of ``TRTBUILD_REMOTES`` and of the names of environment variables.
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
#: Names that no remote may have. The `source` of a step in ``--json`` is one of these names, a remote's name, or null.
RESERVED_NAMES = ("local", "built")

#: The upper limits of `patience_s` (seconds that a remote may be silent) and `connections`.
LONGEST_PATIENCE_S = 600.0
MOST_CONNECTIONS = 256

EXAMPLE_REMOTE = "team=rw:https://cache.example"
_URL_HINT = f"write one such as {EXAMPLE_REMOTE.partition(':')[2]}, file:///mnt/cache or s3://bucket/prefix"


@dataclass(frozen=True)
class _Entry:
    """A remote as the user wrote it.

    A field that is missing or is not a string is an empty string here, but a missing mode is ``rw``.
    """

    place: Place
    name: str
    mode: str
    url: str
    #: ``patience_s`` or ``connections`` → the value and its place. Fields that are not set are missing.
    numbers: Mapping[str, tuple[Any, Place]] = field(default_factory=dict)
    #: Field → its place. Empty if all fields are at `place`.
    places: Mapping[str, Place] = field(default_factory=dict)


def read_remotes(sources: Sources) -> tuple[RemoteSettings, ...]:
    """Return the configured remotes, in the order of lookup. Errors are added to `sources.problems`."""
    entries = list(_entries(sources))
    _check_distinct(sources, entries)
    remotes = []
    for entry in entries:
        problems_before = len(sources.problems)
        fields = (("name", entry.name, _check_name), ("mode", entry.mode, _check_mode), ("url", entry.url, _check_url))
        for key, value, check in fields:
            if value:
                try:
                    check(value)
                except ConfigurationError as error:
                    sources.add_problem(entry.places.get(key, entry.place), error.text, error.hint)
        default = RemoteSettings(entry.name, entry.url)
        patience_s = _read_number(sources, entry, "patience_s", LONGEST_PATIENCE_S)
        connections = _read_number(sources, entry, "connections", MOST_CONNECTIONS)
        if problems_before == len(sources.problems) and entry.name and entry.mode and entry.url:
            remotes.append(
                RemoteSettings(
                    entry.name,
                    entry.url.rstrip("/"),
                    read="r" in entry.mode,
                    write="w" in entry.mode,
                    patience_s=float(patience_s or default.patience_s),
                    connections=int(connections or default.connections),
                )
            )
    return tuple(remotes)


def name_in_variables(name: str) -> str:
    """Return a remote's name as in ``TRTBUILD_REMOTE_MY_TEAM_TOKEN``: ``my-team`` → ``MY_TEAM``."""
    return name.upper().replace("-", "_")


def _entries(sources: Sources) -> Iterator[_Entry]:
    text = sources.environ.get("TRTBUILD_REMOTES")
    if text is not None:
        place = Place(variable="TRTBUILD_REMOTES")
        for word in text.split():
            parts = sources.attempt(place, lambda: _parse_word(word))  # noqa: B023
            if parts is not None:
                yield _Entry(place, *parts)
    elif sources.file is not None:
        tables = sources.file.values.get("remote", [])
        for number, table in enumerate(tables if isinstance(tables, list) else ()):
            if isinstance(table, dict):
                yield _entry_of_table(sources, sources.file, number, table)


def _parse_word(word: str) -> tuple[str, str, str]:
    """Return (name, mode, URL) of a word of ``TRTBUILD_REMOTES``. Raises ConfigurationError without a place."""
    name, equals, rest = word.partition("=")
    mode, colon, url = rest.partition(":")
    if not equals or not name or "/" in name:
        raise ConfigurationError(f"{without_credentials(word)!r} has no name", hint=f"write {EXAMPLE_REMOTE}")
    if not colon or not mode or url.startswith("//"):
        url = rest if mode else rest.removeprefix(":")
        hint = f"write {name}=rw:{without_credentials(url)}: r (read), w (write) or rw (both) before the URL"
        raise ConfigurationError(f"remote {name!r} has no mode", hint=hint)
    if not url:
        raise ConfigurationError(f"remote {name!r} has no URL", hint=f"write {EXAMPLE_REMOTE}")
    return name, mode, url


def _entry_of_table(sources: Sources, file: ConfigFile, number: int, table: Mapping[str, Any]) -> _Entry:
    for key in table:
        if key not in FIELDS["remote"]:
            sources.add_unknown_key(
                file.place("remote", key, nth=number), key, FIELDS["remote"], "fields of [[remote]]"
            )
    texts = {}
    for key, example in (("name", "team"), ("mode", "rw"), ("url", EXAMPLE_REMOTE.partition(":")[2])):
        value = table.get(key, "rw" if key == "mode" else None)
        texts[key] = value.strip() if isinstance(value, str) else ""
        if not texts[key]:
            place = file.place("remote", key, nth=number)
            fault = "is not a string" if key in table else "is missing"
            sources.add_problem(place, f"{key} of a remote {fault}", f'write {key} = "{example}"')
    numbers = {
        key: (table[key], file.place("remote", key, nth=number))
        for key in ("patience_s", "connections")
        if key in table
    }
    places = {key: file.place("remote", key, nth=number) for key in texts}
    return _Entry(places["name"], **texts, numbers=numbers, places=places)


def _read_number(sources: Sources, entry: _Entry, key: str, maximum: float) -> float | None:
    """Return the number in the field `key` of a remote, or None. The environment variable overrides `entry`.

    For an invalid number, a problem is added.
    """
    is_integer = key == "connections"
    value, place = entry.numbers.get(key, (None, entry.place))
    variable = sources.variable(f"TRTBUILD_REMOTE_{name_in_variables(entry.name)}_{key.upper()}")
    if variable is not None:
        text, place = variable
        try:
            value = int(text) if is_integer else float(text)
        except ValueError:
            value = text
    if value is None:
        return None
    if isinstance(value, int if is_integer else (int, float)) and not isinstance(value, bool) and 0 < value <= maximum:
        return float(value)
    allowed = (
        f"a whole number from 1 to {maximum}"
        if is_integer
        else f"a number of seconds, more than 0 and at most {maximum:g}"
    )
    sources.add_problem(
        place, f"{key} of remote {entry.name!r} is not {allowed}", f"write {key} = {16 if is_integer else 4}"
    )
    return None


def _check_distinct(sources: Sources, entries: Iterable[_Entry]) -> None:
    """Check that no two remotes have the same name or environment variables. Otherwise they would share credentials."""
    names_by_prefix: dict[str, str] = {}
    for entry in entries:
        prefix = name_in_variables(entry.name)
        if not prefix:
            continue
        earlier_name = names_by_prefix.get(prefix)
        names_by_prefix.setdefault(prefix, entry.name)
        if earlier_name == entry.name:
            sources.add_problem(entry.place, f"two remotes are called {entry.name!r}", "give one of them another name")
        elif earlier_name is not None:
            text = f"remotes {earlier_name!r} and {entry.name!r} would have the same variables (TRTBUILD_REMOTE_{prefix}_…)"
            sources.add_problem(entry.place, text, "give one of them another name")


def _check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a valid name of a remote", hint="letters, digits, - and _, at most 32, a letter first"
        )
    if name in RESERVED_NAMES:
        raise ConfigurationError(
            f"no remote may be called {name!r}: reports use this name for other sources", hint="call it team"
        )


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ConfigurationError(f"{mode!r} is not a mode", hint="r (read), w (write) or rw (both)")


def _check_url(url: str) -> None:
    from urllib.parse import urlsplit

    if any(character <= " " or character == "\x7f" for character in url):
        raise ConfigurationError(
            f"{without_credentials(url)!r} has a space or control character in it", hint="write %20 for a space"
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        hint = f"write file://{without_credentials(url)}" if url.startswith("/") else _URL_HINT
        raise ConfigurationError(f"{without_credentials(url)!r} is not the URL of a remote", hint=hint)
    try:
        address = kind_of(url).address  # the part after the scheme: "host", "bucket" or "directory"
    except ConfigurationError as error:
        raise ConfigurationError(f"{without_credentials(url)!r} is not the URL of a remote", hint=error.hint) from None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(
            f"{without_credentials(url)!r} is not a valid URL: its host or port cannot be read",
            hint=f"write one such as {EXAMPLE_REMOTE.partition(':')[2]}",
        ) from None
    if "?" in url or "#" in url:
        raise ConfigurationError(
            f"{without_credentials(url)!r} has a query or fragment, but trtbuild adds the names of entries to the URL",
            hint="write the URL without ? and #",
        )
    if address == "directory":
        _check_directory(scheme, parts.netloc, parts.path, rest)
    elif not host:
        raise ConfigurationError(
            f"{without_credentials(url)!r} has no {address}", hint=f"write {scheme}://{address}/path"
        )
    elif address == "bucket" and (port is not None or "@" in parts.netloc):
        raise ConfigurationError(
            f"{without_credentials(url)!r} has more than a bucket before its path",
            hint="credentials and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …)",
        )


def _check_directory(scheme: str, host: str, path: str, rest: str) -> None:
    url, example = without_credentials(f"{scheme}://{rest}"), f"{scheme}:///mnt/cache"
    if host == "~" or rest.startswith(("~", "./", "../")) or host not in ("", "localhost"):
        raise ConfigurationError(
            f"{url!r} is not an absolute path", hint=f"write three slashes and the whole path: {example}"
        )
    if path.strip("/") == "":
        raise ConfigurationError("the root of the file system cannot be a cache", hint=f"name a directory: {example}")
    if ".." in path.split("/"):
        raise ConfigurationError(f"{url!r} has .. in it", hint="write the path without it")


def without_credentials(url: str) -> str:
    """Return a URL, which may be invalid, without its credentials and without its query, which may be a signature."""
    head, separator, rest = url.partition("://")
    if not separator:
        head, separator, rest = "", "", url
    host, slash, path = rest.partition("/")
    if "@" in rest:  # a password may contain a slash, so the last @ counts
        host, slash, path = ("…@" + rest.rpartition("@")[2]).partition("/")
    return f"{head}{separator}{host}{slash}{path}".partition("?")[0]
