"""Who vouches for a record, and whom this machine believes. Values only: `store.trust.signing` does the cryptography.

A TensorRT plan is executable content, so whoever may put a record where others look could run code there. With trusted
keys configured, a record counts only if one of them has signed it, for a trust domain that this machine reads.

Rules
1. A signature covers `statement`: the key of the record, the SHA-256 of its document (which holds the recipe and
   the digests of all outputs), the domain, the signer, and the rest of what it says. So it is worth nothing under another
   key, for another target, or in another domain.
2. With neither a trusted key nor a signing key everything is believed, and nothing is judged. A machine that signs judges:
   else its signature would pass on what anyone has left for it.
3. A domain is where a record comes from (`release`, `ci`, `pr-17`). A machine writes one and reads some.
4. The entry of a record is under its key. If what is there is not trusted by the writer, it is not replaced for others
   who may trust it: the writer's own stands under `domain_key`. A reader looks there when what is under the key is not
   trusted. So nobody can keep others from sharing by being first.
5. A machine that judges and has no signing key signs what it builds with a key of its own, for a domain that begins with
   `LOCAL`. That counts on this machine alone, and never leaves it (`for_others`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.recipes.record import Output
from trtbuild.core.values.encoding import Value, digest, encode

#: How the domain of a key begins that counts on one machine alone.
LOCAL = "local-"

_STATEMENT = encode("trtbuild.signature/1")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,99}")


@dataclass(frozen=True)
class Signature:
    """What someone says of a record, and the proof.

    `signer` is the name that the signer gives their key, `public_key` its 32 bytes (Ed25519), `builder` who and where,
    `signed_at` when by the signer's clock (ISO 8601, UTC; nothing is decided by it), `value` the 64 bytes of the signature.
    """

    signer: str
    public_key: bytes
    domain: str
    builder: str
    signed_at: str
    value: bytes = b""


def statement(key: str, document: Output, signature: Signature) -> bytes:
    """The bytes that `signature` signs (rule 1): all that it says, and of what. Its value is not looked at."""
    said: dict[str, Value] = {
        "key": key,
        "document": document.sha256,
        "size": document.size,
        "signer": signature.signer,
        "public_key": signature.public_key,
        "domain": signature.domain,
        "builder": signature.builder,
        "signed_at": signature.signed_at,
    }
    return _STATEMENT + encode(said)


def is_domain(name: str) -> bool:
    """Whether `name` can be a domain's: letters, digits and ``._/@+-``, at most 100."""
    return _DOMAIN.fullmatch(name) is not None


def domain_key(domain: str, key: str) -> str:
    """The AC key of a domain's own entry for the record under `key` (rule 4)."""
    return digest("trtbuild.domain/1", [domain, key])


def is_entry_of(name: str, key: str, signatures: Iterable[Signature]) -> bool:
    """Whether the record of `key`, with these signatures, may stand under the AC key `name`: its own, or a domain's."""
    return name == key or any(domain_key(signature.domain, key) == name for signature in signatures)


class Trust(Protocol):
    """A machine's policy. Cheap to ask: the same signature is verified once."""

    @property
    def enforced(self) -> bool:
        """Whether records are judged, so that unsigned ones do not count (rule 2)."""

    @property
    def own_domain(self) -> str | None:
        """The domain that this machine writes, or None when it does not sign."""

    @property
    def read_domains(self) -> Sequence[str]:
        """The domains that are believed, in the order of preference. Without the one of rule 5, which is in no remote."""

    @property
    def warnings(self) -> Sequence[str]:
        """What a person should know of this machine's keys."""

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        """Signatures for a record that this machine made; none where nothing is judged."""

    def voucher(self, key: str, document: Output, signatures: Sequence[Signature]) -> Signature | None:
        """The first of `signatures` that counts. None: no one of them does, or nothing is judged."""

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        """Why the record does not count (``it is not signed``, ``signed for domain pr-7; this machine reads ci``), or None
        when it does."""

    def to_json(self) -> dict[str, object] | None:
        """The policy without what signs, for another process (`store.trust.keyring.judge`). None: nothing is judged."""

    def for_others(self, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        """Those of `signatures` that may leave this machine (rule 5). Where records are judged and none is left, the record
        stays here too."""


@dataclass(frozen=True)
class Everyone:
    """The policy where no keys are configured: all is believed, nothing is signed."""

    enforced: bool = False
    own_domain: str | None = None
    read_domains: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        return ()

    def voucher(self, key: str, document: Output, signatures: Sequence[Signature]) -> Signature | None:
        return None

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        return None

    def to_json(self) -> dict[str, object] | None:
        return None

    def for_others(self, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        return tuple(signature for signature in signatures if not signature.domain.startswith(LOCAL))


def places(trust: Trust, key: str) -> Iterator[str]:
    """The AC keys under which a record that counts may stand, in the order in which to look (rule 4)."""
    yield key
    if trust.enforced:
        own = trust.own_domain
        for domain in dict.fromkeys((*trust.read_domains, own)):
            if domain is not None:
                yield domain_key(domain, key)
