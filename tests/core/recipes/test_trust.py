"""The bytes that a signature covers, and the keys under which a record may be stored."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import pytest

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import (
    LOCAL_DOMAIN_PREFIX,
    Signature,
    TrustAll,
    domain_key,
    is_domain,
    is_entry_of,
    lookup_keys,
    statement,
)

KEY, OTHER, DOCUMENT = "ab" * 32, "cd" * 32, Output("ef" * 32, 1234)
SIGNATURE = Signature("ci", bytes(range(32)), "release", "me@here", "2026-01-02T03:04:05Z", bytes(64))


def test_golden_statement() -> None:
    text = statement(KEY, DOCUMENT, SIGNATURE)
    assert text.startswith(b"S" + (20).to_bytes(8, "big") + b"trtbuild.signature/1" + b"M")
    assert hashlib.sha256(text).hexdigest() == "35409569d41c1af4e7697686ad450d8aa8767e6de860e0525d590be5fb9eccca"


def test_all_fields_of_a_signature_are_signed() -> None:
    text = statement(KEY, DOCUMENT, SIGNATURE)
    changed = {
        statement(OTHER, DOCUMENT, SIGNATURE),
        statement(KEY, Output(OTHER, 1234), SIGNATURE),
        statement(KEY, Output(DOCUMENT.sha256, 1235), SIGNATURE),
    }
    for name in (field.name for field in fields(Signature) if field.name != "value"):
        changed.add(statement(KEY, DOCUMENT, replace(SIGNATURE, **{name: b"x" if name == "public_key" else "x"})))
    assert text not in changed
    assert len(changed) == 3 + 5
    assert statement(KEY, DOCUMENT, replace(SIGNATURE, value=b"x")) == text


def test_moving_text_between_fields_changes_the_statement() -> None:
    first = replace(SIGNATURE, signer="a", domain="bc")
    second = replace(SIGNATURE, signer="ab", domain="c")
    assert statement(KEY, DOCUMENT, first) != statement(KEY, DOCUMENT, second)


def test_golden_key_of_a_domain() -> None:
    assert domain_key("ci", KEY) == "f28111eb45d4c8c04d1dab875542f0bdda642e2456c5d42f88806fcc77873c65"
    assert len({domain_key("ci", KEY), domain_key("ci", OTHER), domain_key("c", KEY), KEY}) == 4


def test_the_keys_under_which_a_record_may_be_stored() -> None:
    """A machine that does not check signatures looks for a record only under the step's key.

    `TrustAll` holds the fields that `lookup_keys` reads."""
    policy = TrustAll(checks_signatures=True, own_domain="ci", read_domains=("release", "ci"))
    assert tuple(lookup_keys(policy, KEY)) == (KEY, domain_key("release", KEY), domain_key("ci", KEY))
    machine = TrustAll(checks_signatures=True, own_domain=f"{LOCAL_DOMAIN_PREFIX}1", read_domains=("ci",))
    assert tuple(lookup_keys(machine, KEY)) == (KEY, domain_key("ci", KEY), domain_key(f"{LOCAL_DOMAIN_PREFIX}1", KEY))
    assert tuple(lookup_keys(TrustAll(checks_signatures=True), KEY)) == (KEY,)
    assert tuple(lookup_keys(TrustAll(), KEY)) == (KEY,)


def test_an_entry_is_under_the_key_of_its_record_or_the_key_of_a_domain_that_signed_it() -> None:
    assert is_entry_of(KEY, KEY, ())
    assert is_entry_of(domain_key("release", KEY), KEY, [SIGNATURE])
    assert not is_entry_of(domain_key("release", KEY), KEY, ())
    assert not is_entry_of(domain_key("ci", KEY), KEY, [SIGNATURE])
    assert not is_entry_of(domain_key("release", KEY), OTHER, [SIGNATURE])


@pytest.mark.parametrize("name", ["ci", "pr-17", "refs/pull/17", "a.b_c@d+e", "x" * 100])
def test_accepts_names_of_domains(name: str) -> None:
    assert is_domain(name)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a,b", "a;b", "a:b", "é", "a\n", "x" * 101])
def test_rejects_invalid_names_of_domains(name: str) -> None:
    assert not is_domain(name)


def test_without_keys_every_record_is_trusted_and_no_record_is_signed() -> None:
    policy = TrustAll()
    assert not policy.checks_signatures
    assert policy.sign(KEY, DOCUMENT) == ()
    assert policy.refusal(KEY, DOCUMENT, ()) is None
    assert policy.trusted_signature(KEY, DOCUMENT, [SIGNATURE]) is None
    assert policy.to_json() is None


def test_local_signatures_are_not_sent_to_others() -> None:
    local = replace(SIGNATURE, domain=f"{LOCAL_DOMAIN_PREFIX}0123456789abcdef")
    assert TrustAll().sendable_signatures([local, SIGNATURE]) == (SIGNATURE,)
