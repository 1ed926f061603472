"""Finds the credentials for a remote, in the URL, the environment or netrc.

The first of these sources that has credentials is used:
1. user information in the URL (``https://user:password@host``)
2. ``TRTBUILD_REMOTE_<NAME>_TOKEN``: a bearer token
3. ``TRTBUILD_REMOTE_<NAME>_USER`` and ``…_PASSWORD``
4. the entry of the remote's host in the file ``$NETRC``, or in ``~/.netrc`` if that variable is not set. A `default` entry
   is ignored, because it would send its password to any host. The entry of a host called ``default`` is ignored, too,
   because Python's parser does not distinguish the two.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from trtbuild.errors import ConfigurationError


@dataclass(frozen=True)
class Credentials:
    """The value of an ``Authorization`` header, and its source. No repr shows the value."""

    header: str = field(repr=False)
    source: str


def public_place(url: str) -> str:
    """`url` without user information, query and fragment, for people. Raises ConfigurationError if it has no valid host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        # The message does not repeat `url`, which may contain a password.
        raise ConfigurationError("the URL of a remote has no host, or a wrong port", hint="https://host[:port]/path")
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{shown}:{port}" if port else shown, parts.path.rstrip("/"), "", ""))


def environment_name(remote: str, suffix: str) -> str:
    """The environment variable ``TRTBUILD_REMOTE_<NAME>_<SUFFIX>``. NAME is the remote's name in capitals, with a ``_`` for
    each character that is not an ASCII letter or digit."""
    return f"TRTBUILD_REMOTE_{re.sub('[^A-Za-z0-9]', '_', remote).upper()}_{suffix}"


def find_credentials(remote: str, url: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """The credentials for the remote named `remote` at `url`, or None.

    Raises ConfigurationError for a token with invalid characters, a user variable without a password variable (or the
    reverse), and an unreadable netrc.
    """
    environment = os.environ if environment is None else environment
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        return _basic_credentials(unquote(parts.username or ""), unquote(parts.password or ""), "the URL")
    token_name, user_name, password_name = (environment_name(remote, name) for name in ("TOKEN", "USER", "PASSWORD"))
    if token := environment.get(token_name, "").strip():
        if not re.fullmatch(r"[!-~]+", token):
            raise ConfigurationError(
                f"{token_name} has characters that are not allowed in a token", hint="printable ASCII, no spaces"
            )
        return Credentials(f"Bearer {token}", token_name)
    user, password = environment.get(user_name), environment.get(password_name)
    if user and password:
        return _basic_credentials(user, password, user_name)
    if user or password:
        present, missing = (user_name, password_name) if user else (password_name, user_name)
        raise ConfigurationError(f"{missing} is not set, but {present} is", hint=f"set {missing} as well")
    return _from_netrc(parts.hostname or "", environment)


def basic_header(user: str, password: str) -> str:
    """The value of an ``Authorization`` header by RFC 7617, in UTF-8."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _basic_credentials(user: str, password: str, source: str) -> Credentials:
    return Credentials(basic_header(user, password), source)


def _from_netrc(host: str, environment: Mapping[str, str]) -> Credentials | None:
    netrc_path = environment.get("NETRC")
    path = Path(netrc_path) if netrc_path else Path(environment.get("HOME") or Path("~").expanduser()) / ".netrc"
    from netrc import NetrcParseError, netrc

    problem: str | None = None
    line: int | None = None
    entry = None
    try:
        if host != "default" and path.is_file():
            entry = netrc(str(path)).hosts.get(host)
    except NetrcParseError as error:
        problem, line = "it is not a netrc file", error.lineno
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    if problem:  # raised here, so that the error has no cause: the cause's text repeats words of the file
        raise ConfigurationError(f"netrc cannot be read: {problem}", file=str(path), line=line)
    if entry is None:
        return None
    login, _, password = entry
    return _basic_credentials(login or "", password or "", str(path))
