"""Who this machine is to a remote: from the URL, the environment or netrc. Never shown, never sent to another host.

Order, first found wins
1. user information in the URL (``https://user:password@host``)
2. ``TRTBUILD_REMOTE_<NAME>_TOKEN``: a bearer token
3. ``TRTBUILD_REMOTE_<NAME>_USER`` and ``…_PASSWORD``
4. the entry of exactly that host in ``$NETRC``, else ``~/.netrc``. A `default` entry is not used: it names no host.
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
    """The value of an ``Authorization`` header, and where it came from. The value is in no repr."""

    header: str = field(repr=False)
    source: str


def public_place(url: str) -> str:
    """`url` without user information, query and fragment: what people are shown.

    Raises ConfigurationError when it is no URL with a host.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        # the text is not repeated: what is misread as no host may be a password
        raise ConfigurationError("the URL of a remote has no host, or a wrong port", hint="https://host[:port]/path")
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{shown}:{port}" if port else shown, parts.path.rstrip("/"), "", ""))


def environment_name(remote: str, what: str) -> str:
    """``TRTBUILD_REMOTE_<NAME>_<WHAT>``: the name in capitals, with ``_`` for all that is no letter or digit."""
    return f"TRTBUILD_REMOTE_{re.sub('[^A-Za-z0-9]', '_', remote).upper()}_{what}"


def find(remote: str, url: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """The credentials for the remote called `remote` at `url`, or None.

    Raises ConfigurationError for a token that cannot be in a header, half of a login, and a netrc that cannot be read.
    """
    environment = os.environ if environment is None else environment
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        return _basic(unquote(parts.username or ""), unquote(parts.password or ""), "the URL")
    token_name, user_name, password_name = (environment_name(remote, what) for what in ("TOKEN", "USER", "PASSWORD"))
    if token := environment.get(token_name, "").strip():
        if not re.fullmatch(r"[!-~]+", token):
            raise ConfigurationError(
                f"{token_name} has characters that no token has", hint="printable ASCII, no spaces"
            )
        return Credentials(f"Bearer {token}", token_name)
    user, password = environment.get(user_name), environment.get(password_name)
    if user and password:
        return _basic(user, password, user_name)
    if user or password:
        missing = password_name if user else user_name
        raise ConfigurationError(f"{missing} is not set, and its other half is", hint=f"set {missing} as well")
    return _from_netrc(parts.hostname or "", environment)


def basic_header(user: str, password: str) -> str:
    """The value of an ``Authorization`` header by RFC 7617, in UTF-8."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _basic(user: str, password: str, source: str) -> Credentials:
    return Credentials(basic_header(user, password), source)


def _from_netrc(host: str, environment: Mapping[str, str]) -> Credentials | None:
    named = environment.get("NETRC")
    path = Path(named) if named else Path(environment.get("HOME") or Path("~").expanduser()) / ".netrc"
    if not path.is_file():
        return None
    from netrc import NetrcParseError, netrc

    wrong: str | None = None
    line: int | None = None
    found = None
    try:
        found = netrc(str(path)).hosts.get(host)
    except NetrcParseError as error:
        wrong, line = "it is no netrc", error.lineno
    except (OSError, UnicodeDecodeError) as error:
        wrong = getattr(error, "strerror", None) or "it is not UTF-8"
    if wrong:  # raised out here, without the cause: that one's text repeats words of the file
        raise ConfigurationError(f"netrc cannot be read: {wrong}", file=str(path), line=line)
    if found is None:
        return None
    login, _, password = found
    return _basic(login or "", password or "", str(path))
