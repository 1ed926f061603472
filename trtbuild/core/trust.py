"""Who vouches for a record, and whom this machine believes. Values only: `store.signing` does the cryptography.

A TensorRT plan is executable content, so whoever may put a record where others look could run code there. With trusted
keys configured, a record counts only if one of them has signed it, for a trust domain that this machine reads.

Rules
1. A signature covers the statement below: the key of the record, the SHA-256 of its document (which holds the recipe and
   the digests of all outputs), the domain, the signer, and the rest of what it says. So it is worth nothing under another
   key, for another target, or in another domain.
2. With no trusted keys everything is believed, and nothing is judged.
3. A domain is where a record comes from (`release`, `ci`, `pr-17`). A machine writes one and reads some.
4. The entry of a record is under its key. If what is there is not trusted by the writer, it is not replaced for others
   who may trust it: the writer's own stands under `domain_key`. A reader looks there when what is under the key is not
   trusted. So nobody can keep others from sharing by being first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.encoding import digest
from trtbuild.core.record import Output


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


def domain_key(domain: str, key: str) -> str:
    """The AC key of a domain's own entry for the record under `key` (rule 4)."""
    return digest("trtbuild.domain/1", [domain, key])


class Trust(Protocol):
    """A machine's policy. Cheap to ask: the same signature is verified once."""

    @property
    def enforced(self) -> bool:
        """Whether trusted keys are configured, so that unsigned records do not count."""

    @property
    def own_domain(self) -> str | None:
        """The domain that this machine writes, or None when it does not sign."""

    @property
    def read_domains(self) -> Sequence[str]:
        """The domains that are believed, in the order of preference."""

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        """Signatures for a record that this machine made; none without a signing key."""

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        """Why the record does not count (``it is not signed``, ``signed by 'ci' for domain pr-7, which is not read``), or
        None when it does."""


@dataclass(frozen=True)
class Everyone:
    """The policy where no keys are configured: all is believed, nothing is signed."""

    enforced: bool = False
    own_domain: str | None = None
    read_domains: tuple[str, ...] = ()

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        return ()

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        return None
