"""Ed25519 keys: their text form, and the signing of records. keyring.py decides which keys are trusted.

Rules
1. No error, log or repr contains a private key, and a private key is not passed to another process.
2. The texts of private and public keys begin differently, so that a person does not publish the wrong key.
3. Only the owner of a private key's file can read and write it. The file is never overwritten, and appears complete or not
   at all.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import errno
import hashlib
import importlib.util
import os
import re
import secrets
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX, Signature, is_domain, statement
from trtbuild.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The beginning of a private key's text (rule 2). Scanners for secrets can look for it.
PRIVATE_PREFIX = "trtbuild-private-key"

_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_PUBLIC_KEY_HINT = "it is name:base64, as `trtbuild cache keygen` prints it"


@dataclass(frozen=True)
class TrustedKey:
    """A trusted public key (32 bytes). It is trusted until the end of the day `expires` (UTC).

    If `expires` is None, the key does not expire. A domain is the origin of a record, such as ``ci``. If `domains` is not
    empty, the key counts for these domains only.
    """

    name: str
    public_key: bytes
    expires: datetime.date | None = None
    domains: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public_key)

    def __str__(self) -> str:
        """The text that `parse_trusted` reads."""
        text = f"{self.name}:{base64.b64encode(self.public_key).decode()}"
        text += f";expires={self.expires.isoformat()}" if self.expires else ""
        return text + (f";domains={','.join(self.domains)}" if self.domains else "")


def fingerprint(public_key: bytes) -> str:
    """The first 16 hex digits of a key's SHA-256, for people."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def parse_trusted(text: str) -> TrustedKey:
    """Parse ``ci:<base64>``, with optional ``;expires=2027-01-01`` and ``;domains=ci,release`` after it.

    Raises ConfigurationError, without a file or line.
    """
    if text.strip().startswith(PRIVATE_PREFIX):
        raise ConfigurationError(
            "this is a private key, where a public one belongs",
            hint="it may have been seen: make a new one with `trtbuild cache keygen`, and trust the line that it prints",
        )
    head, *options = text.strip().split(";")
    name, colon, encoded = head.partition(":")
    if not colon or not _KEY_NAME.fullmatch(name):
        raise ConfigurationError(f"{text!r:.80} is not a trusted key", hint=_PUBLIC_KEY_HINT)
    key = TrustedKey(name, _parse_public_key(encoded, name))
    for option in options:
        option_name, _, value = option.partition("=")
        if option_name == "expires":
            key = replace(key, expires=_parse_date(value, name))
        elif option_name == "domains":
            key = replace(key, domains=tuple(check_domain(domain) for domain in value.split(",")))
        else:
            raise ConfigurationError(
                f"trusted key {name!r}: {option!r:.80} is not known",
                hint="it is expires=2027-01-01 or domains=ci,release",
            )
    return key


def parse_revoked(text: str) -> bytes:
    """The public key in ``ci:<base64>`` or ``<base64>``. Options after ``;`` are ignored.

    Raises ConfigurationError, without a file or line.
    """
    if text.strip().startswith(PRIVATE_PREFIX):
        return parse_trusted(text).public_key  # raises the error for a private key
    name, _, encoded = text.strip().partition(";")[0].rpartition(":")
    return _parse_public_key(encoded, name or "revoked")


def check_domain(name: str) -> str:
    """Return `name` if it is a valid domain. Raises ConfigurationError, without a file or line."""
    if not is_domain(name):
        raise ConfigurationError(
            f"{name!r:.80} is not a domain", hint="it is letters, digits and ._/@+-, such as ci or pr-17"
        )
    if name.startswith(LOCAL_DOMAIN_PREFIX):
        raise ConfigurationError(
            f"no domain may be called {name!r}",
            hint=f"names that begin with {LOCAL_DOMAIN_PREFIX} are for one machine only",
        )
    return name


def _parse_date(text: str, name: str) -> datetime.date:
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError("not year-month-day")
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"trusted key {name!r}: {text!r:.40} is not a date",
            hint="write the last valid day (UTC), such as 2027-01-31",
        ) from None


def _parse_public_key(encoded: str, name: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ConfigurationError(f"key {name!r} is not the base64 of 32 bytes", hint=_PUBLIC_KEY_HINT)
    return key


def require_cryptography() -> None:
    """Raise ConfigurationError if the package that signs and verifies is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigurationError(
            "keys are configured, and the package that verifies signatures is not installed",
            hint="pip install 'cryptography>=42'",
        )


class Signer:
    """A private key and its name."""

    def __init__(self, name: str, seed: bytes) -> None:
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.name = name
        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Signer({self.name!r}, {fingerprint(self.public_key)})"

    @classmethod
    def new(cls, name: str) -> Signer:
        """A new random key. Raises ConfigurationError for an invalid name."""
        if not _KEY_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r:.80} is not a name of a key", hint="it is letters, digits and ._@+-, at most 64"
            )
        return cls(name, secrets.token_bytes(32))

    @classmethod
    def from_text(cls, text: str) -> Signer:
        """The key in ``trtbuild-private-key:<name>:<base64 of 32 bytes>``. Raises ConfigurationError, which does not
        contain the text, a file or a line."""
        prefix, _, rest = text.strip().partition(":")
        name, _, encoded = rest.partition(":")
        try:
            seed = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            seed = b""
        if prefix != PRIVATE_PREFIX or not _KEY_NAME.fullmatch(name) or len(seed) != 32:
            raise ConfigurationError(
                "this is not a signing key", hint=f"`trtbuild cache keygen` makes one: it begins with {PRIVATE_PREFIX}:"
            )
        return cls(name, seed)

    @classmethod
    def load(cls, path: Path) -> Signer:
        """The key in a file. Raises ConfigurationError if the file cannot be read or is not a key. It is also raised if the
        file belongs to this user, and other users may read or write it."""
        try:
            with open(path, "rb") as file:
                status, text = os.fstat(file.fileno()), file.read(4096).decode("ascii", "replace")
        except OSError as error:
            raise ConfigurationError(
                f"the signing key cannot be read: {error.strerror or error}",
                file=str(path),
                hint="correct its place, or make one: trtbuild cache keygen",
            ) from error
        # As in ssh, only files of this user are checked, because a mounted secret may belong to root.
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            raise ConfigurationError(
                "others may read or write this signing key", file=str(path), hint=f"chmod 600 {shlex.quote(str(path))}"
            )
        try:
            return cls.from_text(text)
        except ConfigurationError as error:
            error.file = str(path)
            raise

    def save(self, path: Path) -> None:
        """Write the key to a new file. Raises FileExistsError if the file exists, or another OSError."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:  # the parent is a file
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
        temporary = f"{path}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(f"{self.text()}\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            Path(temporary).unlink()

    def text(self) -> str:
        """The secret text that `from_text` reads."""
        return f"{PRIVATE_PREFIX}:{self.name}:{base64.b64encode(self._key.private_bytes_raw()).decode()}"

    @property
    def trusted(self) -> TrustedKey:
        """The public key, in the form that other machines configure."""
        return TrustedKey(self.name, self.public_key)

    def sign(self, key: str, document: Output, domain: str, builder: str, signed_at: str) -> Signature:
        """A signature on a record, for `domain`."""
        # Readers ignore a signature with a text of more than 200 characters (action_result.py).
        unsigned = Signature(self.name, self.public_key, domain, builder[:200], signed_at)
        return replace(unsigned, value=self._key.sign(statement(key, document, unsigned)))
