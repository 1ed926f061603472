"""Makes the errors of an HTTP remote from its status, its Retry-After header or a failed connection.

`overdue_fault` is for all remotes. No error has a `__cause__`, because a cause may contain URLs and headers.
"""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import time
from typing import Literal

from trtbuild.errors import RemoteDown, RemoteFault, RemoteRefused
from trtbuild.store.transports.connection import NotHttp
from trtbuild.store.transports.credentials import Credentials, environment_name
from trtbuild.store.transports.pace import Overdue, Silence
from trtbuild.store.transports.route import Route

Action = Literal["read", "write"]

SLOW_LINE_HINT = "is its line slow? raise patience_s of this remote"

_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_NO_UPLOAD_STATUSES = frozenset({404, 405, 410, 501})
_BROKEN_CONNECTION_ERRORS = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.EBADF})


def login_fault(place: str, remote: str, status: int, action: Action, login: Credentials | None) -> RemoteRefused:
    """The error for status 401, 403 or 407."""
    token, user, password = (environment_name(remote, name) for name in ("TOKEN", "USER", "PASSWORD"))
    if login:
        problem = f"it does not accept the credentials from {login.source} to {action} entries"
    else:
        problem = f"it requires credentials to {action} entries"
    text = f"{_status_text(place, status)}: {problem}"
    hint = f"set {token}, or {user} and {password}, or add the host to ~/.netrc"
    if status == 407:
        text, hint = _status_text(place, status), "put user and password into the proxy's URL (HTTPS_PROXY)"
    if action == "write":
        hint += '; or set mode = "r", if this machine need not write'
    return RemoteRefused(text, hint=hint)


def status_fault(place: str, status: int, action: Action, retry_after_s: float | None) -> RemoteFault:
    """The error for a status that means failure, except those of `login_fault`."""
    text = _status_text(place, status)
    if action == "write" and status in _NO_UPLOAD_STATUSES:
        return RemoteRefused(f"{text}: it takes no uploads", hint='check its url, or set mode = "r"')
    if status in _TRANSIENT_STATUSES or (status >= 500 and status != 501):
        return RemoteDown(text, is_transient=True, retry_after_s=retry_after_s)
    if status < 300:
        return RemoteDown(f"{text}, which is not an answer to a request to {action}")
    return RemoteRefused(text, hint="check the url of the remote")


def overdue_fault(place: str, seconds: float) -> RemoteDown:
    """The error for an entry that took longer than its total limit."""
    return RemoteDown(f"{place}: an entry did not arrive within {seconds:.2g} s", hint=SLOW_LINE_HINT)


def connection_fault(place: str, route: Route, error: BaseException) -> RemoteDown:
    """The error for an exception of the connection."""
    # The order matters: Overdue is a Silence, and the exceptions of ssl and of connections are OSErrors.
    if isinstance(error, Overdue):
        return overdue_fault(place, error.seconds)
    if isinstance(error, Silence):
        return RemoteDown(f"{place}: {error}", hint="is it up, and can it be reached from here?")
    if isinstance(error, NotHttp):
        return RemoteDown(f"{place}: {error}", hint="check the url of the remote, and the proxy, if there is one")
    if isinstance(error, socket.gaierror):
        host = f"the proxy {route.proxy.host}" if route.proxy else f"the host {route.host}"
        return RemoteDown(f"{place}: {host} is not known", hint="check the url of the remote, and DNS")
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "set SSL_CERT_FILE to the certificates of your organization"
        return RemoteDown(f"{place}: its certificate is not valid ({error.verify_message})", hint=hint)
    if isinstance(error, ssl.SSLEOFError) or (isinstance(error, OSError) and error.errno in _BROKEN_CONNECTION_ERRORS):
        return RemoteDown(f"{place}: the connection broke off", is_transient=True)
    if isinstance(error, ssl.SSLError):
        return RemoteDown(f"{place}: TLS failed ({error.reason})", hint="does it speak TLS on this port?")
    if isinstance(error, ConnectionRefusedError):
        text = f"{place}: connection refused: no server listens there"
        return RemoteDown(text, is_transient=True, hint="is it up, and is its port right?")
    if isinstance(error, (ConnectionError, http.client.IncompleteRead)):  # RemoteDisconnected is a ConnectionError
        return RemoteDown(f"{place}: the connection broke off", is_transient=True)
    if isinstance(error, OSError):
        return RemoteDown(f"{place}: {error.strerror or type(error).__name__}")
    return RemoteDown(
        f"{place}: the answer is not HTTP", hint="check the url of the remote: http or https, and the port"
    )


def parse_retry_after(retry_after: str | None) -> float | None:
    """The value of a Retry-After header in seconds, or None if it is missing or invalid.

    The header is a number of seconds or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after.strip()[:9])  # a number of nine digits is enough for any wait
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _status_text(place: str, status: int) -> str:
    return f"{place} answered {status} {http.client.responses.get(status, '')}".rstrip()
