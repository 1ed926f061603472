"""An object store (S3, Google Cloud Storage, Azure) as a remote, through obstore: ``s3://bucket/prefix``,
``gs://bucket/prefix``, ``az://container/prefix``.

    <prefix>/ac/<key>  <prefix>/cas/<sha256>

Rules
1. obstore finds credentials and endpoints in environment variables, web identity and the machine's role (container,
   instance). It does not read ~/.aws. A URL with credentials is rejected. Plain http is used only for S3, if an
   environment variable such as ``AWS_ENDPOINT_URL`` has an endpoint with this scheme. obstore always follows redirects. To
   another host, it sends no Authorization header. It sends the session token, which is useless without its key.
2. The texts of obstore's errors contain URLs, some with signatures. An error here repeats only the status, the service's
   code, and the name of a missing setting. It is not chained to obstore's error.
3. ``If-None-Match: *`` prevents an entry from being written twice. For a service that does not support this header, the
   entry is looked up first.
4. Silence is limited while connecting, until the first byte of an answer, and between received bytes. obstore does not
   report the progress of an upload, and its time limit for the answer includes the upload. So this limit grows with the
   upload, by a second for each `MIN_BYTES_PER_S` bytes. A server that stops in the middle of an upload is noticed only
   after that limit.
5. Entries are not marked as used, because object stores do not store the time of use. An entry that the bucket's lifecycle
   rules have removed is a miss.
"""

from __future__ import annotations

import os
import re
import threading
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import from_url

from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports import faults
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import MIN_BYTES_PER_S, TIMED_FACTOR, Transport

_CREDENTIALS_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to the file of a service account's key",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_KEY",
}

# Scheme → the permission without which the service answers 403, not 404, for an entry that does not exist.
_LIST_PERMISSIONS = {"s3": "s3:ListBucket", "gs": "storage.objects.list"}

# Sizes of uploads in bytes: small files, average chunks, the largest chunks, the largest entries. An upload has the time
# limit of the smallest of these sizes that it does not exceed (rule 4).
_UPLOAD_SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 26)

_NO_BUCKET_PATTERN = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound")
# The text of an error of the requests with which obstore looks for the credentials of the machine's role (rule 1).
_METADATA_PATTERN = re.compile(
    r"latest/api/token|latest/meta-data|computeMetadata|metadata/identity|source: TokenRequest"
)
# The text of an error that occurred before there was a connection.
_CONNECT_PATTERN = re.compile(r"\(\s*Connect,")
_STATUS_PATTERN = re.compile(r"status code: (\d{3})\b")
_CODE_PATTERN = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_FULL_CODE_PATTERN = re.compile(r"EntityTooLarge|RequestBodyTooLarge|QuotaExceeded|StorageFull|InsufficientStorage")


class ObjectTransport(Transport):
    """See `transport.Transport`. Raises ConfigurationError if the URL is invalid or the environment lacks a setting."""

    decides_races = True

    def __init__(self, settings: RemoteSettings) -> None:
        parts = urlsplit(settings.url)
        if (
            parts.scheme not in _CREDENTIALS_HINTS
            or not parts.hostname
            or "@" in parts.netloc
            or parts.query
            or parts.fragment
        ):
            raise ConfigurationError(
                f"remote {settings.name}: an object store is named by its bucket and a prefix, and by nothing else",
                hint="write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; "
                "credentials are variables of the environment",
            )
        self._scheme = parts.scheme
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.place = self._url
        self._patience_s = settings.patience_s
        self._lock = threading.Lock()
        #: False after the service has rejected ``If-None-Match`` as not supported (rule 3).
        self._can_write_once = True
        #: The time limit for an answer → the store object with this limit.
        self._upload_stores: dict[float, Any] = {}
        self._store = self._open_store(settings.patience_s)

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        deadline = time.monotonic() + TIMED_FACTOR * self._patience_s if timed else float("inf")
        try:
            result = self._store.get(f"{kind}/{name}")
            size = int(result.meta["size"])
            if size > limit:
                raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
            return self._read(result, f"{kind}/{name}", size, deadline)
        except RemoteFault:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not _NO_BUCKET_PATTERN.search(str(error)):
                return None
            fault = self._fault(error, self._patience_s)
        raise fault  # outside the except block, so that obstore's error is not its context (rule 2)

    def _read(self, result: Any, name: str, size: int, deadline: float) -> bytes:
        pieces, count = [], 0
        window_start, count_at_start = time.monotonic(), 0
        for piece in result.stream(min_chunk_size=1):
            pieces.append(piece)
            count += len(piece)
            now = time.monotonic()
            if now >= deadline and count < size:
                raise faults.overdue_fault(self.place, TIMED_FACTOR * self._patience_s)
            if now - window_start > self._patience_s:
                if count - count_at_start < MIN_BYTES_PER_S * self._patience_s and count < size:
                    raise RemoteDown(f"{self.place}: fewer than {MIN_BYTES_PER_S} bytes came in a second")
                window_start, count_at_start = now, count
        if count != size:
            raise RemoteDown(f"{self.place}: {name} ended after {count} of {size} bytes", is_transient=True)
        return b"".join(pieces)

    def has(self, kind: Kind, name: str) -> bool:
        try:
            self._store.head(f"{kind}/{name}")
            return True
        except FileNotFoundError:
            return False
        except Exception as error:
            fault = self._fault(error, self._patience_s)
        raise fault

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        try:
            if once and self._can_write_once:
                written = self._put_once(kind, name, data)
                if written is not None:
                    return written
            if once and self.has(kind, name):
                return False
            self._put(kind, name, data, "overwrite")
            return True
        except RemoteFault:
            raise
        except Exception as error:
            fault = self._fault(error, self._upload_limit_s(data))
        raise fault

    def _put_once(self, kind: Kind, name: str, data: bytes | memoryview) -> bool | None:
        """Whether the entry was written, or None if the service does not support ``If-None-Match`` (rule 3)."""
        try:
            self._put(kind, name, data, "create")
            return True
        except (AlreadyExistsError, PreconditionError):
            return False
        except BaseError as error:
            if not isinstance(error, NotSupportedError) and _status(str(error)) != 501:
                raise
        self._can_write_once = False
        self.decides_races = False
        return None

    def _put(self, kind: Kind, name: str, data: bytes | memoryview, mode: Any) -> None:
        types = {"Content-Type": "application/json" if kind == "ac" else "application/octet-stream"}
        store = self._upload_store(self._upload_limit_s(data))
        store.put(f"{kind}/{name}", data, attributes=types, mode=mode, use_multipart=False)

    def _upload_limit_s(self, data: bytes | memoryview) -> float:
        """The time limit for the answer to an upload (rule 4)."""
        size = len(memoryview(data).cast("B"))
        max_size = next((max_size for max_size in _UPLOAD_SIZES if size <= max_size), size)
        return self._patience_s + max_size / MIN_BYTES_PER_S

    def _upload_store(self, answer_s: float) -> Any:
        """The store object with a time limit of `answer_s` for an answer."""
        with self._lock:
            store = self._upload_stores.get(answer_s)
            if store is None:
                store = self._upload_stores[answer_s] = self._open_store(answer_s)
        return store

    def _open_store(self, answer_s: float) -> Any:
        """Open the bucket with a limit of `answer_s` seconds of silence. Raises ConfigurationError."""
        options: Any = {
            "connect_timeout": timedelta(seconds=self._patience_s),
            "read_timeout": timedelta(seconds=answer_s),
            "timeout": timedelta(days=30),  # in effect no total limit; the default is 30 s
        }
        if self._uses_plain_http():
            options["allow_http"] = True
        try:
            return from_url(self._url, client_options=options, retry_config={"max_retries": 0})
        except Exception as error:
            problem = _missing_setting(str(error))
        raise ConfigurationError(
            f"{self.place}: the environment does not say enough: {problem}", hint=_CREDENTIALS_HINTS[self._scheme]
        )

    def _uses_plain_http(self) -> bool:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = next((os.environ[name] for name in names if os.environ.get(name)), "")
        return self._scheme == "s3" and endpoint.startswith("http://")

    def _fault(self, error: Exception, answer_s: float) -> RemoteFault:
        """The error to raise for an error of obstore (rule 2). `answer_s` was the time limit for the answer."""
        text = str(error)
        status, code = _status(text), _code(text)
        message = f"{self.place}: the service answered {status or 404}" + (f" {code}" if code else "")
        if _METADATA_PATTERN.search(text):
            return RemoteRefused(f"{self.place}: no credentials were found", hint=_CREDENTIALS_HINTS[self._scheme])
        if isinstance(error, FileNotFoundError) or _NO_BUCKET_PATTERN.search(text):
            return RemoteRefused(message, hint="there is no such bucket: create it, or correct the remote's url")
        if status is None:
            return self._fault_without_status(text, answer_s)
        if status in (413, 507) or _FULL_CODE_PATTERN.search(code):
            return RemoteFull(message)
        if status in (408, 409, 429) or status >= 500:
            return RemoteDown(message, is_transient=True)
        if 300 <= status < 400:
            return RemoteRefused(message, hint="is the bucket in another region? set AWS_REGION")
        hint = _CREDENTIALS_HINTS[self._scheme]
        if status == 403 and self._scheme in _LIST_PERMISSIONS:
            permission = _LIST_PERMISSIONS[self._scheme]
            hint += f"; if they are set, allow {permission}: without it, the answer for a missing entry is 403, too"
        return RemoteRefused(message, hint=hint)

    def _fault_without_status(self, text: str, answer_s: float) -> RemoteFault:
        """The error to raise if no status was received."""
        if "kind: Timeout" in text or "TimedOut" in text:
            if _CONNECT_PATTERN.search(text):
                return RemoteDown(f"{self.place}: no connection within {self._patience_s:g} s")
            return RemoteDown(f"{self.place}: no answer within {answer_s:g} s")
        if "dns error" in text:
            return RemoteDown(f"{self.place}: its host is not known")
        if "ConnectionRefused" in text:
            return RemoteDown(f"{self.place}: the connection was refused")
        if "kind: Connect" in text:
            return RemoteDown(f"{self.place}: no connection")
        return RemoteDown(f"{self.place}: the connection broke off, or the answer made no sense", is_transient=True)


def _status(text: str) -> int | None:
    """The HTTP status in the text of obstore's error, or None."""
    match = _STATUS_PATTERN.search(text)
    return int(match[1]) if match else None


def _code(text: str) -> str:
    """The service's code of an error, for example ``SlowDown`` from ``<Code>SlowDown</Code>``."""
    match = _CODE_PATTERN.search(text)
    return match[1] if match else ""


def _missing_setting(text: str) -> str:
    """The name of obstore's error as words: ``missing access key id`` from ``MissingAccessKeyId``. The rest of its text is
    not used, because it could contain credentials."""
    match = re.search(r"source: ((?:Missing|UnknownCredential|Unable)[A-Za-z]{0,60})\b", text)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", match[1]).lower() if match else "it could not be read"
