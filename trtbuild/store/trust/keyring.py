"""The trusted keys of a machine, their expiry and revocation, and its signing key: the `Trust` of core/recipes/trust.py.

Rules
1. A signature is accepted if it is valid for the record, and if its key is trusted and neither revoked nor expired. In
   addition, this machine must read the signature's domain (the origin of the record, such as ``ci``), and the key must be
   allowed to sign for this domain.
2. A machine that signs trusts its own key, for its own domain. So its own records are hits.
3. A machine that verifies signatures, but has no usable signing key (rule 5), has a machine key. Only this machine trusts
   it (core/recipes/trust.py, rule 5). The key is created for the first signature. While there is a usable signing key, the
   machine key is not trusted. So records that were built before the signing key was configured are built again.
4. Keys expire by this machine's clock (UTC). The time in a signature is ignored, because the thief of a key can choose it.
5. A signing key that is revoked or expired is not used. This causes a warning, and not an error.
"""

from __future__ import annotations

import base64
import datetime
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX, Signature, Trust, TrustAll, statement
from trtbuild.errors import ConfigurationError
from trtbuild.store.trust.signing import (
    Signer,
    TrustedKey,
    check_domain,
    fingerprint,
    parse_trusted,
    require_cryptography,
)


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class MachineKey:
    """The machine key (rule 3), in the file `path`. If the file cannot be read or written, the key is for this process
    only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: Signer | None = None
        self._lock = threading.Lock()
        #: Why the key of this process is not the one in the file, for people. Empty if there is no problem.
        self.problem = ""

    def find(self) -> Signer | None:
        """The key, or None if it does not exist."""
        with self._lock:
            if self._key is None and self._exists():
                self._key = self._load()
            return self._key

    def get_or_create(self) -> Signer:
        """The key. Creates it if it does not exist."""
        existing = self.find()
        if existing is not None:
            return existing
        key = Signer.new("local")
        try:
            key.save(self._path)
        except FileExistsError:  # another process was faster
            return self.find() or self._use_temporary_key("it is gone again")
        except OSError as error:
            return self._use_temporary_key(str(error.strerror or error))
        with self._lock:
            self._key = self._key or key
            return self._key

    def _exists(self) -> bool:
        try:
            return self._path.exists()
        except OSError:
            return False

    def _load(self) -> Signer:
        try:
            return Signer.load(self._path)
        except ConfigurationError as error:
            self.problem = f"{error.text} ({self._path})"
            return Signer.new("local")

    def _use_temporary_key(self, why: str) -> Signer:
        with self._lock:
            self.problem = f"the key of this machine cannot be kept: {why} ({self._path})"
            self._key = self._key or Signer.new("local")
            return self._key


class Keyring:
    """A machine's policy: a `core.recipes.trust.Trust`. Several threads may share an object.

    `trusted` are the trusted keys. `revoked` are public keys that are never trusted. `read_domains` are the domains to
    read, besides this machine's domain. By default, they are the domains of all trusted keys, and the name of each key
    without domains. `signer` signs for `domain`, by default the signer's name. `machine` is the machine key (rule 3).
    `builder` names the user and the machine. The attribute `warnings` has texts for people about these keys.

    Raises ConfigurationError for an invalid domain, or if there are keys and `cryptography` is not installed.
    """

    def __init__(
        self,
        trusted: Sequence[TrustedKey] = (),
        *,
        revoked: Collection[bytes] = (),
        read_domains: Sequence[str] = (),
        signer: Signer | None = None,
        domain: str | None = None,
        machine: MachineKey | None = None,
        builder: str = "",
        now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        self.checks_signatures = bool(trusted) or signer is not None
        if self.checks_signatures:
            require_cryptography()
        self.warnings: Sequence[str] = ()
        self._revoked = frozenset(revoked)
        self._machine = machine
        self._machine_public: TrustedKey | None = None
        self._builder = builder
        self._now = now
        self._trusted_keys: dict[bytes, list[TrustedKey]] = {}
        #: (key of a record, its document, signature) → whether the signature is valid for the record.
        self._checked_signatures: dict[tuple[str, Output, Signature], bool] = {}
        for key in trusted:
            self._trusted_keys.setdefault(key.public_key, []).append(key)
        self._signer = self._usable_signer(signer)
        self._domain: str | None = None
        if self._signer is not None:
            self._domain = check_domain(domain or self._signer.name)
            own_key = replace(self._signer.trusted, domains=(self._domain,))
            self._trusted_keys.setdefault(own_key.public_key, []).append(own_key)
        key_domains = [name for key in trusted for name in key.domains or (key.name,)]
        own_domains = [self._domain] if self._domain else []
        domains = [*read_domains, *own_domains] if read_domains else [*own_domains, *key_domains]
        self.read_domains: Sequence[str] = tuple(dict.fromkeys(map(check_domain, domains)))

    def _usable_signer(self, signer: Signer | None) -> Signer | None:
        """`signer`, unless it is revoked or expired (rule 5)."""
        if signer is None:
            return None
        known = self._trusted_keys.get(signer.public_key, [])
        if signer.public_key in self._revoked:
            why_not = "is revoked"
        elif known and (expiry := self._expiry_of(known)) is not None:
            why_not = f"expired on {expiry}"
        else:
            return signer
        consequence = "results built here are trusted on this machine only, and are not uploaded"
        self.warnings = (f"the signing key {signer.name!r} {why_not}: {consequence}",)
        return None

    def to_json(self) -> dict[str, object] | None:
        if not self.checks_signatures:
            return None
        machine_key = self._trusted_machine_key()
        return {
            "trusted": [str(key) for keys in self._trusted_keys.values() for key in keys],
            "revoked": [base64.b64encode(key).decode() for key in self._revoked],
            "read_domains": list(self.read_domains),
            "machine": None if machine_key is None else str(replace(machine_key, domains=())),
        }

    # -- signing

    @property
    def own_domain(self) -> str | None:
        if self._domain is not None:
            return self._domain
        machine_key = self._trusted_machine_key()
        return None if machine_key is None else machine_key.domains[0]

    def sign(self, key: str, document: Output) -> tuple[Signature, ...]:
        signer, domain = self._signer, self._domain
        if signer is None and self.checks_signatures and self._machine is not None:
            signer = self._machine.get_or_create()
            if self._machine.problem:
                self.warnings = tuple(dict.fromkeys((*self.warnings, self._machine.problem)))
        if signer is None:
            return ()
        domain = domain or _machine_only_key(signer.trusted).domains[0]
        signed_at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return (signer.sign(key, document, domain, self._builder, signed_at),)

    def sendable_signatures(self, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        return tuple(signature for signature in signatures if not signature.domain.startswith(LOCAL_DOMAIN_PREFIX))

    # -- verifying

    def trusted_signature(self, key: str, document: Output, signatures: Sequence[Signature]) -> Signature | None:
        if not self.checks_signatures:
            return None
        accepted = (signature for signature in signatures if self._objection(key, document, signature) is None)
        return next(accepted, None)

    def refusal(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        if not self.checks_signatures:
            return None
        objections: list[str] = []
        for signature in signatures:
            objection = self._objection(key, document, signature)
            if objection is None:
                return None
            objections.append(objection)
        return "; ".join(dict.fromkeys(objections[:3])) if objections else "it is not signed"

    def _objection(self, key: str, document: Output, signature: Signature) -> str | None:
        """Why a signature is not accepted (rule 1), or None if it is."""
        trusted_keys = self._trusted_keys_of(signature)
        name = trusted_keys[0].name if trusted_keys else signature.signer
        if signature.public_key in self._revoked:
            return f"key {name!r:.60} is revoked"
        if not trusted_keys:
            return (
                f"signed by a key that is not trusted (name {name!r:.60}, "
                f"fingerprint {fingerprint(signature.public_key)})"
            )
        if not self._is_valid(key, document, signature):
            return "its signature does not fit (altered, or another record's)"
        # A local domain is this machine's local domain here: `_trusted_keys_of` finds no key for those of other machines.
        if signature.domain not in self.read_domains and not signature.domain.startswith(LOCAL_DOMAIN_PREFIX):
            return f"signed for domain {signature.domain}; this machine reads {', '.join(self.read_domains)}"
        permitted_keys = [
            trusted_key
            for trusted_key in trusted_keys
            if not trusted_key.domains or signature.domain in trusted_key.domains
        ]
        if not permitted_keys:
            return f"key {name!r} may not sign for domain {signature.domain}"
        expiry = self._expiry_of(permitted_keys)
        return None if expiry is None else f"key {name!r} expired on {expiry}"

    def _trusted_keys_of(self, signature: Signature) -> Sequence[TrustedKey]:
        if not signature.domain.startswith(LOCAL_DOMAIN_PREFIX):
            return self._trusted_keys.get(signature.public_key, ())
        machine_key = self._trusted_machine_key()
        if machine_key is None or signature.public_key != machine_key.public_key:
            return ()
        return (machine_key,) if signature.domain == machine_key.domains[0] else ()

    def _trusted_machine_key(self) -> TrustedKey | None:
        """The public part of the machine key (rule 3), if the key exists and is trusted."""
        if self._machine_public is not None:  # found earlier; in a worker, `trust_from_json` has set it
            return self._machine_public
        if self._machine is None or self._signer is not None or not self.checks_signatures:
            return None
        signer = self._machine.find()
        if signer is not None:
            self._machine_public = _machine_only_key(signer.trusted)
        return self._machine_public

    def _expiry_of(self, keys: Sequence[TrustedKey]) -> str | None:
        """The latest expiry date of `keys`, as text with today's date. None if at least one key has not expired."""
        today = self._now().date()
        expired = [key.expires for key in keys if key.expires is not None and key.expires < today]
        if len(expired) < len(keys):
            return None
        return f"{max(expired).isoformat()} (this machine's clock says {today.isoformat()})"

    def _is_valid(self, key: str, document: Output, signature: Signature) -> bool:
        arguments = (key, document, signature)
        is_valid = self._checked_signatures.get(arguments)
        if is_valid is None:
            is_valid = _verify_signature(signature.public_key, signature.value, statement(key, document, signature))
            self._checked_signatures[arguments] = is_valid
        return is_valid


def trust_from_json(policy: Mapping[str, Any] | None) -> Trust:
    """The policy of a worker process, from the `to_json` of its parent's policy. The worker's policy does not sign."""
    if policy is None:
        return TrustAll()
    keyring = Keyring(
        [parse_trusted(text) for text in policy["trusted"]],
        revoked=[base64.b64decode(text) for text in policy["revoked"]],
        read_domains=policy["read_domains"],
    )
    keyring.checks_signatures = True  # `trusted` is empty if the parent's only key is a revoked signing key
    if policy["machine"] is not None:
        keyring._machine_public = _machine_only_key(parse_trusted(policy["machine"]))
    return keyring


def _machine_only_key(key: TrustedKey) -> TrustedKey:
    """The machine key `key`, with the domain that only this machine reads."""
    return replace(key, domains=(f"{LOCAL_DOMAIN_PREFIX}{fingerprint(key.public_key)}",))


def _verify_signature(public_key: bytes, signature: bytes, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
