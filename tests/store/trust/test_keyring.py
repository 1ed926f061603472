"""The signatures that a machine trusts, and the key with which it signs."""

from __future__ import annotations

import datetime
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX, Signature
from trtbuild.errors import ConfigurationError
from trtbuild.store.trust import keyring as keyring_module
from trtbuild.store.trust.keyring import Keyring, MachineKey, trust_from_json
from trtbuild.store.trust.signing import Signer

KEY, OTHER, DOCUMENT = "ab" * 32, "cd" * 32, Output("ef" * 32, 1234)
CI, RELEASE, STRANGER = (Signer(name, bytes([number] * 32)) for number, name in enumerate(("ci", "release", "unknown")))


def clock_at(date: str) -> Callable[[], datetime.datetime]:
    return lambda: datetime.datetime.fromisoformat(f"{date}T12:00:00+00:00")


def signed(signer: Signer, domain: str | None = None, key: str = KEY, document: Output = DOCUMENT) -> Signature:
    """`signer`'s signature of a record, by default for the domain with the signer's name."""
    return signer.sign(key, document, domain or signer.name, "someone@somewhere", "2026-01-02T03:04:05Z")


def refusal(policy: Keyring, *signatures: Signature) -> str | None:
    """The reason why a record with these signatures is not trusted, or None."""
    why_not = policy.refusal(KEY, DOCUMENT, signatures)
    assert (policy.trusted_signature(KEY, DOCUMENT, signatures) is None) == (why_not is not None)
    return why_not


def test_accepts_a_signature_of_a_trusted_key() -> None:
    policy = Keyring([CI.trusted])
    assert policy.checks_signatures
    assert refusal(policy, signed(CI)) is None
    assert policy.trusted_signature(KEY, DOCUMENT, [signed(STRANGER), signed(CI)]) == signed(CI)


def test_an_unsigned_record_is_not_trusted() -> None:
    assert refusal(Keyring([CI.trusted])) == "it is not signed"


def test_an_untrusted_signer_is_reported_by_name_and_fingerprint() -> None:
    reason = f"signed by a key that is not trusted (name 'unknown', fingerprint {STRANGER.trusted.fingerprint})"
    assert refusal(Keyring([CI.trusted]), signed(STRANGER)) == reason


def test_the_name_of_an_untrusted_signer_is_printable() -> None:
    why_not = refusal(Keyring([CI.trusted]), replace(signed(STRANGER), signer="\x1b[2J\n" + "x" * 500))
    assert why_not is not None
    assert why_not.isprintable()
    assert len(why_not) < 200


def test_the_name_of_a_trusted_key_does_not_make_another_key_trusted() -> None:
    assert "not trusted" in (refusal(Keyring([CI.trusted]), signed(Signer("ci", b"x" * 32))) or "")


@pytest.mark.parametrize("field", [field.name for field in fields(Signature)])
def test_rejects_a_signature_with_an_altered_field(field: str) -> None:
    policy = Keyring([CI.trusted, RELEASE.trusted], read_domains=["ci", "release"])
    good = signed(CI)
    assert refusal(policy, good) is None
    value = {"public_key": RELEASE.public_key, "value": signed(CI, key=OTHER).value}.get(field, "release")
    altered = replace(good, **{field: value})  # type: ignore[arg-type]
    assert refusal(policy, altered) == "its signature does not fit (altered, or another record's)"


def test_rejects_a_signature_with_an_altered_value() -> None:
    policy, good = Keyring([CI.trusted]), signed(CI)
    for place in range(64):
        for bit in (1, 128):
            value = bytearray(good.value)
            value[place] ^= bit
            assert refusal(policy, replace(good, value=bytes(value))) is not None
    for value in (b"", bytes(64), good.value[:-1], good.value + b"\0"):
        assert refusal(policy, replace(good, value=bytes(value))) is not None


def test_rejects_the_signature_of_another_record() -> None:
    policy = Keyring([CI.trusted])
    reason = "its signature does not fit (altered, or another record's)"
    assert refusal(policy, signed(CI, key=OTHER)) == reason
    assert refusal(policy, signed(CI, document=Output(OTHER, 1234))) == reason
    assert refusal(policy, signed(CI, document=Output(DOCUMENT.sha256, 1))) == reason


def test_rejects_other_domains() -> None:
    policy = Keyring([CI.trusted], read_domains=["release", "ci"])
    assert refusal(policy, signed(CI, "pr-7")) == "signed for domain pr-7; this machine reads release, ci"
    assert refusal(policy, signed(CI, "release")) is None


def test_a_key_may_sign_only_for_its_domains() -> None:
    policy = Keyring([replace(CI.trusted, domains=("ci",)), RELEASE.trusted], read_domains=["release", "ci"])
    assert refusal(policy, signed(CI, "release")) == "key 'ci' may not sign for domain release"
    assert refusal(policy, signed(CI, "ci")) is None


def test_read_domains_have_defaults() -> None:
    assert Keyring([CI.trusted, replace(RELEASE.trusted, domains=("r1", "r2"))]).read_domains == ("ci", "r1", "r2")
    assert Keyring([CI.trusted], signer=RELEASE).read_domains == ("release", "ci")
    assert Keyring([CI.trusted], signer=RELEASE, domain="mine", read_domains=["ci"]).read_domains == ("ci", "mine")


def test_a_key_expires_after_its_last_day() -> None:
    trusted = replace(CI.trusted, expires=datetime.date(2026, 3, 31))
    assert refusal(Keyring([trusted], now=clock_at("2026-03-31")), signed(CI)) is None
    reason = "key 'ci' expired on 2026-03-31 (this machine's clock says 2026-04-01)"
    assert refusal(Keyring([trusted], now=clock_at("2026-04-01")), signed(CI)) == reason


def test_an_expired_key_is_reported_with_the_date_of_the_clock() -> None:
    trusted = replace(CI.trusted, expires=datetime.date(2026, 12, 31))
    assert "2027-11-21" in (refusal(Keyring([trusted], now=clock_at("2027-11-21")), signed(CI)) or "")
    assert refusal(Keyring([trusted], now=clock_at("2025-11-21")), signed(CI)) is None


def test_the_date_in_a_signature_does_not_matter() -> None:
    trusted = replace(CI.trusted, expires=datetime.date(2026, 3, 31))
    for moment in ("1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "never"):
        back_dated = CI.sign(KEY, DOCUMENT, "ci", "", moment)
        assert refusal(Keyring([trusted], now=clock_at("2026-03-01")), back_dated) is None
        assert refusal(Keyring([trusted], now=clock_at("2026-05-01")), back_dated) is not None


def test_a_key_with_two_expiry_dates_expires_at_the_later() -> None:
    keys = [replace(CI.trusted, expires=datetime.date(year, 1, 1)) for year in (2026, 2028)]
    assert refusal(Keyring(keys, now=clock_at("2027-01-01")), signed(CI)) is None


def test_a_revoked_key_is_not_trusted() -> None:
    policy = Keyring([CI.trusted, RELEASE.trusted], revoked=[CI.public_key])
    assert refusal(policy, signed(CI)) == "key 'ci' is revoked"
    assert refusal(policy, signed(RELEASE)) is None
    assert refusal(policy, signed(CI), signed(RELEASE)) is None, "another signature may be trusted"


def test_the_reasons_of_all_signatures_are_reported() -> None:
    policy = Keyring([CI.trusted])
    reasons = refusal(policy, signed(CI, "pr-7"), signed(STRANGER), signed(CI, "pr-7")) or ""
    assert reasons.startswith("signed for domain pr-7; this machine reads ci; signed by a key")
    assert reasons.count("pr-7") == 1


def test_a_signing_machine_trusts_itself_and_checks_others() -> None:
    policy = Keyring(signer=CI, domain="pr-7")
    assert policy.checks_signatures
    assert (policy.own_domain, policy.read_domains) == ("pr-7", ("pr-7",))
    own = policy.sign(KEY, DOCUMENT)
    assert policy.refusal(KEY, DOCUMENT, own) is None
    assert policy.sendable_signatures(own) == own
    assert refusal(policy, signed(STRANGER)) is not None
    assert refusal(policy) == "it is not signed"
    assert "pr-7" in (refusal(policy, signed(CI, "release")) or ""), "its own key, but for another domain"


def test_the_signing_key_of_a_machine_may_sign_only_for_its_domain() -> None:
    policy = Keyring([RELEASE.trusted], signer=CI, domain="pr-7", read_domains=["release"])
    assert refusal(policy, signed(CI, "release")) == "key 'ci' may not sign for domain release"


def test_a_machine_without_a_signing_key_trusts_its_own_records(tmp_path: Path) -> None:
    policy = Keyring([CI.trusted], machine=MachineKey(tmp_path / "state" / "local.key"))
    assert policy.own_domain is None
    assert not (tmp_path / "state").exists(), "the key is created when it is first needed"
    own = policy.sign(KEY, DOCUMENT)
    assert stat.S_IMODE((tmp_path / "state" / "local.key").stat().st_mode) == 0o600
    assert policy.refusal(KEY, DOCUMENT, own) is None
    assert policy.own_domain == own[0].domain
    assert own[0].domain.startswith(LOCAL_DOMAIN_PREFIX)
    assert policy.own_domain not in policy.read_domains, "no remote has such entries"
    assert policy.sendable_signatures(own) == ()
    assert policy.sendable_signatures([*own, signed(CI)]) == (signed(CI),)
    reopened = Keyring([CI.trusted], machine=MachineKey(tmp_path / "state" / "local.key"))
    assert reopened.refusal(KEY, DOCUMENT, own) is None
    assert reopened.own_domain == policy.own_domain


def test_several_threads_create_one_machine_key(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def make(number: int) -> bytes:
        key = MachineKey(tmp_path / "state" / "local.key")
        together.wait(timeout=30)
        return key.get_or_create().public_key

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(make, range(8)))) == 1
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["local.key"]


def test_a_machine_signature_is_trusted_on_that_machine_only(tmp_path: Path) -> None:
    first, second = (Keyring([CI.trusted], machine=MachineKey(tmp_path / name)) for name in "ab")
    own = first.sign(KEY, DOCUMENT)
    second.sign(KEY, DOCUMENT)
    assert "not trusted" in (second.refusal(KEY, DOCUMENT, own) or "")
    assert "not trusted" in (Keyring([CI.trusted]).refusal(KEY, DOCUMENT, own) or "")
    forged = signed(CI, own[0].domain)
    assert "not trusted" in (first.refusal(KEY, DOCUMENT, [forged]) or ""), (
        "a trusted key may not sign for a machine's domain"
    )


def test_a_machine_with_a_signing_key_ignores_its_machine_key(tmp_path: Path) -> None:
    own = Keyring([CI.trusted], machine=MachineKey(tmp_path / "k")).sign(KEY, DOCUMENT)
    policy = Keyring([CI.trusted], signer=RELEASE, machine=MachineKey(tmp_path / "k"))
    assert policy.refusal(KEY, DOCUMENT, own) is not None
    assert policy.sign(KEY, DOCUMENT)[0].public_key == RELEASE.public_key


def test_a_machine_key_that_cannot_be_stored_is_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    policy = Keyring([CI.trusted], machine=MachineKey(tmp_path / "file" / "local.key"))
    own = policy.sign(KEY, DOCUMENT)
    assert policy.refusal(KEY, DOCUMENT, own) is None
    assert policy.refusal(KEY, DOCUMENT, policy.sign(KEY, DOCUMENT)) is None
    assert len(policy.warnings) == 1
    assert "cannot be kept" in policy.warnings[0]


def test_a_broken_machine_key_is_only_a_warning_and_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "local.key").write_bytes(b"broken")
    (tmp_path / "local.key").chmod(0o600)
    policy = Keyring([CI.trusted], machine=MachineKey(tmp_path / "local.key"))
    assert policy.refusal(KEY, DOCUMENT, policy.sign(KEY, DOCUMENT)) is None
    assert "not a signing key" in policy.warnings[0]
    assert (tmp_path / "local.key").read_bytes() == b"broken"


@pytest.mark.parametrize("state", ["revoked", "expired"])
def test_does_not_sign_with_an_expired_or_revoked_key(tmp_path: Path, state: str) -> None:
    trusted = replace(CI.trusted, expires=datetime.date(2026, 3, 31))
    policy = Keyring(
        [trusted],
        revoked=[CI.public_key] if state == "revoked" else [],
        signer=CI,
        machine=MachineKey(tmp_path / "k"),
        now=clock_at("2026-04-01"),
    )
    own = policy.sign(KEY, DOCUMENT)
    assert policy.refusal(KEY, DOCUMENT, own) is None
    assert policy.sendable_signatures(own) == ()
    assert state in policy.warnings[0]
    alone = Keyring(revoked=[CI.public_key], signer=CI)
    assert alone.checks_signatures
    assert alone.refusal(KEY, DOCUMENT, ()) is not None, "without its key, the policy still rejects unsigned records"


def test_a_worker_has_the_policy_of_its_driver(tmp_path: Path) -> None:
    driver = Keyring(
        [replace(CI.trusted, domains=("ci",)), replace(STRANGER.trusted, expires=datetime.date(2020, 1, 1))],
        revoked=[Signer("x", b"x" * 32).public_key],
        signer=RELEASE,
        domain="mine",
    )
    worker = trust_from_json(driver.to_json())
    assert worker.checks_signatures
    assert worker.sign(KEY, DOCUMENT) == ()
    assert worker.own_domain is None
    assert tuple(worker.read_domains) == tuple(driver.read_domains)
    for signatures in (
        driver.sign(KEY, DOCUMENT),
        (),
        [signed(CI)],
        [signed(CI, "mine")],
        [signed(STRANGER)],
        [signed(Signer("x", b"x" * 32))],
        [signed(RELEASE, "release")],
    ):
        assert worker.refusal(KEY, DOCUMENT, signatures) == driver.refusal(KEY, DOCUMENT, signatures)
    machine = Keyring([CI.trusted], machine=MachineKey(tmp_path / "k"))
    assert machine.to_json() == trust_from_json(machine.to_json()).to_json()
    own = machine.sign(KEY, DOCUMENT)
    assert trust_from_json(machine.to_json()).refusal(KEY, DOCUMENT, own) is None
    assert not trust_from_json(None).checks_signatures
    assert not trust_from_json(Keyring().to_json()).checks_signatures
    assert trust_from_json(Keyring(revoked=[CI.public_key], signer=CI).to_json()).checks_signatures


def test_workers_do_not_get_private_keys() -> None:
    assert CI.text().rpartition(":")[2] not in str(Keyring([RELEASE.trusted], signer=CI).to_json())


def test_without_keys_nothing_is_checked_or_signed() -> None:
    policy = Keyring()
    assert not policy.checks_signatures
    assert policy.sign(KEY, DOCUMENT) == ()
    assert policy.refusal(KEY, DOCUMENT, ()) is None


def test_verifies_a_signature_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    verify = keyring_module._verify_signature

    def count_and_verify(*arguments: Any) -> Any:
        calls.append(arguments)
        return verify(*arguments)

    monkeypatch.setattr(keyring_module, "_verify_signature", count_and_verify)
    policy = Keyring([CI.trusted])
    for _ in range(3):
        assert policy.refusal(KEY, DOCUMENT, [signed(CI)]) is None
    assert len(calls) == 1
    assert policy.refusal(OTHER, DOCUMENT, [signed(CI)]) is not None
    assert len(calls) == 2


def test_rejects_invalid_domains() -> None:
    for settings in ({"read_domains": ["a b"]}, {"read_domains": ["local-1"]}, {"signer": CI, "domain": "local-1"}):
        with pytest.raises(ConfigurationError):
            Keyring([CI.trusted], **settings)  # type: ignore[arg-type]
