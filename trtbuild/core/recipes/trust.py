"""Signatures on records, and the policy that decides which records a machine trusts.

A TensorRT plan is executable content, so anyone who can write a record for other machines could run code on these
machines. If trusted keys are configured, a record is used only if one of these keys, or this machine's own key, has signed
it for a domain that this machine reads. `store.trust.signing` does the cryptography.

Rules
1. A signature covers `statement`: the key of the record, the SHA-256 and size of the record's document, and all fields of
   the signature except `value`. The document has the recipe and the digests of all outputs. So the signature is not valid
   under another key, for another target, or in another domain.
2. A machine without trusted keys and without a signing key trusts all records and does not check signatures. A machine
   that signs always checks signatures, because otherwise it could sign results that follow from untrusted records.
3. A domain is the origin of a record (`release`, `ci`, `pr-17`). A machine writes records of one domain, and reads records
   of one or more domains.
4. A record's entry in the action cache (the directory `ac/` of a store) is under the record's key. If the writer does not
   trust an entry that is already there, that entry stays, because other machines may trust it. The writer then writes its
   own entry under `domain_key`. A reader that does not trust the entry under the key looks under `domain_key`. So an
   attacker cannot prevent sharing by writing an entry first.
5. A machine that checks signatures and has no signing key signs its results with a machine key, for a domain that begins
   with `LOCAL_DOMAIN_PREFIX`. Such a signature counts only on this machine, and is never sent to others
   (`sendable_signatures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.recipes.record import Output
from trtbuild.core.values.encoding import Value, digest, encode

#: The prefix of a machine key's domain (rule 5).
LOCAL_DOMAIN_PREFIX = "local-"

_ENCODED_STATEMENT_SCHEMA = encode("trtbuild.signature/1")
_DOMAIN_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,99}")


@dataclass(frozen=True)
class Signature:
    """A signature on a record.

    `signer` is the name of the signing key. `public_key` has the 32 bytes of the public key, and `value` the 64 bytes of
    the signature (Ed25519). `builder` names the user and the machine. `signed_at` is the time of the signer's clock
    (ISO 8601, UTC), for information only.
    """

    signer: str
    public_key: bytes
    domain: str
    builder: str
    signed_at: str
    value: bytes = b""


def statement(key: str, document: Output, signature: Signature) -> bytes:
    """The bytes that a signature covers (rule 1): the key and the document of a record, and the signature's fields except
    `value`."""
    fields: dict[str, Value] = {
        "key": key,
        "document": document.sha256,
        "size": document.size,
        "signer": signature.signer,
        "public_key": signature.public_key,
        "domain": signature.domain,
        "builder": signature.builder,
        "signed_at": signature.signed_at,
    }
    return _ENCODED_STATEMENT_SCHEMA + encode(fields)


def is_domain(name: str) -> bool:
    """Whether `name` is a valid domain: at most 100 letters, digits and ``._/@+-``. The first is a letter or digit."""
    return _DOMAIN_PATTERN.fullmatch(name) is not None


def domain_key(domain: str, key: str) -> str:
    """The key under which the action cache has the entry of `domain` for the record under `key` (rule 4)."""
    return digest("trtbuild.domain/1", [domain, key])


def is_entry_of(name: str, key: str, signatures: Iterable[Signature]) -> bool:
    """Whether the entry `name` of the action cache may have the record of `key`.

    Its name must be `key`, or the `domain_key` of a domain in `signatures`."""
    return name == key or any(domain_key(signature.domain, key) == name for signature in signatures)


class Trust(Protocol):
    """A machine's trust policy. Calls are cheap, because each signature is verified only once."""

    @property
    def checks_signatures(self) -> bool:
        """Whether signatures are checked (rule 2). Then unsigned records do not count."""

    @property
    def own_domain(self) -> str | None:
        """The domain of this machine's records. None if the machine does not sign, or has no machine key yet (rule 5)."""

    @property
    def read_domains(self) -> Sequence[str]:
        """The trusted domains in the order of preference, without the local domain (rule 5), which is never in a remote."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the user about this machine's keys."""

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        """Signatures for a record that this machine made.

        Empty if signatures are not checked, or if there is no key to sign with."""

    def trusted_signature(self, key: str, document: Output, signatures: Sequence[Signature]) -> Signature | None:
        """The first valid, trusted signature in `signatures`.

        None if there is no such signature, or if signatures are not checked."""

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        """The reason why the record does not count, or None if it counts.

        Examples: ``it is not signed``, ``signed for domain pr-7; this machine reads ci``."""

    def to_json(self) -> dict[str, object] | None:
        """The policy without its signing keys, for another process (`store.trust.keyring.trust_from_json`).

        None if signatures are not checked."""

    def sendable_signatures(self, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        """The signatures in `signatures` that may be sent to others (rule 5).

        If signatures are checked and the result is empty, the record is not sent."""


@dataclass(frozen=True)
class TrustAll:
    """The policy without configured keys: all records are trusted, and nothing is signed.

    `Trust` describes the fields. Only tests change them."""

    checks_signatures: bool = False
    own_domain: str | None = None
    read_domains: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        return ()

    def trusted_signature(self, key: str, document: Output, signatures: Sequence[Signature]) -> Signature | None:
        return None

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        return None

    def to_json(self) -> dict[str, object] | None:
        return None

    def sendable_signatures(self, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        return tuple(signature for signature in signatures if not signature.domain.startswith(LOCAL_DOMAIN_PREFIX))


def lookup_keys(trust: Trust, key: str) -> Iterator[str]:
    """The keys in the action cache under which a trusted record of `key` may be, in the order of the lookups (rule 4)."""
    yield key
    if trust.checks_signatures:
        own_domain = trust.own_domain
        for domain in dict.fromkeys((*trust.read_domains, own_domain)):
            if domain is not None:
                yield domain_key(domain, key)
