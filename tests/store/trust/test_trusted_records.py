"""Records in stores whose users trust only some signers.

A domain is the origin of a record, such as ``ci``. If an untrusted record is under a key, a trusted record is stored as a
domain entry: under another key, which is computed from the first key and the domain (`domain_key`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.memory_store import MemoryStore
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Trust, domain_key
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.collection import check
from trtbuild.store.collection.collect import collect
from trtbuild.store.collection.search import records_with_output
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult, record_entry
from trtbuild.store.trust.keyring import Keyring, MachineKey
from trtbuild.store.trust.signing import Signer

CI, RELEASE, STRANGER = (
    Signer(name, bytes([number] * 32)) for number, name in enumerate(("ci", "release", "stranger"))
)

Store = LocalStore | MemoryStore
OpenStore = Callable[..., Store]


def policy(signer: Signer | None, *trusted: Signer, domain: str | None = None, reads: tuple[str, ...] = ()) -> Keyring:
    """The policy of a machine that signs with `signer`, trusts the keys of `trusted`, and reads the domains `reads`."""
    return Keyring([other.trusted for other in trusted], signer=signer, domain=domain, read_domains=reads)


@pytest.fixture(params=["local", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """A function that opens the same store with different policies."""
    memory = MemoryStore()

    def open_with(trust: Trust | None = None) -> Store:
        if request.param == "local":
            return LocalStore(tmp_path / "store", trust)
        view = MemoryStore(trust)
        view.blobs, view.records, view.signatures = memory.blobs, memory.records, memory.signatures
        return view

    return open_with


@pytest.fixture
def put(record_of: Callable[..., Record]) -> Callable[..., Record]:
    """A function that puts a record whose plan is the name of the record's builder."""

    def publish(store: Store, who: str, number: int = 1, *, replace: bool = False) -> Record:
        return store.put_record(record_of(number, who=who, plan=store.put_bytes(who.encode())), replace=replace)

    return publish


def builder_of(record: Record | None) -> object:
    return None if record is None else record.provenance["who"]


def key_of(record_of: Callable[..., Record], number: int = 1) -> str:
    return record_of(number).recipe.key


def test_a_signed_record_is_found_if_the_key_is_trusted(open_store: OpenStore, put: Callable[..., Record]) -> None:
    key = put(open_store(policy(CI)), "ci").recipe.key
    assert builder_of(open_store(policy(CI)).get_record(key)) == "ci", "its own record"
    assert builder_of(open_store(policy(None, CI)).get_record(key)) == "ci"
    assert builder_of(open_store().get_record(key)) == "ci", "a user without a policy reads it too"
    with pytest.raises(RecordUntrusted, match="signed by a key that is not trusted \\(name 'ci'"):
        open_store(policy(None, RELEASE)).get_record(key)


def test_an_unsigned_record_is_found_without_a_policy(open_store: OpenStore, put: Callable[..., Record]) -> None:
    key = put(open_store(), "anyone").recipe.key
    assert builder_of(open_store().get_record(key)) == "anyone"
    with pytest.raises(RecordUntrusted, match=r"does not count: it is not signed$"):
        open_store(policy(None, CI)).get_record(key)


def test_an_untrusted_record_does_not_block_a_trusted_one(open_store: OpenStore, put: Callable[..., Record]) -> None:
    """See rule 4 of core/recipes/trust.py."""
    key = put(open_store(policy(STRANGER)), "stranger").recipe.key
    assert builder_of(put(open_store(policy(CI)), "ci")) == "ci"
    assert builder_of(open_store(policy(CI)).get_record(key)) == "ci"
    assert builder_of(open_store(policy(None, CI)).get_record(key)) == "ci"
    assert builder_of(open_store(policy(STRANGER)).get_record(key)) == "stranger", (
        "the record stays for those who trust it"
    )
    assert builder_of(open_store().get_record(key)) == "stranger"


def test_two_domains_share_a_store_without_conflicts(open_store: OpenStore, put: Callable[..., Record]) -> None:
    release, pr = policy(RELEASE, RELEASE), policy(CI, CI, domain="pr-7", reads=("pr-7",))
    for number, (first, second) in enumerate(((release, pr), (pr, release))):
        put(open_store(first), first.own_domain, number)
        record = put(open_store(second), second.own_domain, number)
        for keyring in (release, pr):
            assert builder_of(open_store(keyring).get_record(record.recipe.key)) == keyring.own_domain
            assert builder_of(put(open_store(keyring), "later", number)) == keyring.own_domain, (
                "each domain hits its own record"
            )


def test_a_release_never_reads_records_of_a_pull_request(open_store: OpenStore, put: Callable[..., Record]) -> None:
    """A release rejects a record of a pull request even if the release trusts the key of the signature."""
    key = put(open_store(policy(CI, domain="pr-7")), "pr").recipe.key
    with pytest.raises(RecordUntrusted, match="signed for domain pr-7; this machine reads release, ci"):
        open_store(policy(None, CI, reads=("release", "ci"))).get_record(key)


def test_prefers_domains_in_the_configured_order(open_store: OpenStore, put: Callable[..., Record]) -> None:
    key = put(open_store(policy(STRANGER)), "stranger").recipe.key
    put(open_store(policy(CI)), "ci")
    put(open_store(policy(RELEASE)), "release")
    for reads in (("release", "ci"), ("ci", "release")):
        assert builder_of(open_store(policy(None, CI, RELEASE, reads=reads)).get_record(key)) == reads[0]


def test_the_first_trusted_record_wins(open_store: OpenStore, put: Callable[..., Record]) -> None:
    put(open_store(policy(CI)), "ci")
    assert builder_of(put(open_store(policy(RELEASE, CI)), "release")) == "ci"
    assert builder_of(put(open_store(policy(RELEASE, CI)), "release", replace=True)) == "release"


def test_a_forced_record_replaces_the_trusted_record_only(open_store: OpenStore, put: Callable[..., Record]) -> None:
    key = put(open_store(policy(STRANGER)), "stranger").recipe.key
    put(open_store(policy(CI)), "ci")
    put(open_store(policy(CI)), "ci again", replace=True)
    assert builder_of(open_store(policy(CI)).get_record(key)) == "ci again"
    assert builder_of(open_store(policy(STRANGER)).get_record(key)) == "stranger"


def test_a_new_record_is_found_although_a_preferred_domain_has_a_record_that_lacks_a_blob(
    tmp_path: Path, put: Callable[..., Record]
) -> None:
    """The untrusted record under the key may be one whose signing key has expired. It stays."""
    store = LocalStore(tmp_path / "store", policy(STRANGER))
    key = put(store, "stranger").recipe.key
    lost = put(LocalStore(store.root, policy(RELEASE)), "release").outputs["plan"].sha256
    Path(store.entries.layout.entry_path("cas", lost)).unlink()
    ci = LocalStore(store.root, policy(CI, RELEASE, reads=("release", "ci")))
    assert builder_of(ci.get_record(key)) == "release"
    assert builder_of(put(ci, "ci")) == "ci"
    assert builder_of(ci.get_record(key)) == "ci"
    assert builder_of(put(LocalStore(store.root, policy(STRANGER)), "other")) == "stranger"
    assert builder_of(put(LocalStore(store.root, policy(RELEASE)), "release again")) == "release again"
    assert builder_of(put(ci, "ci again")) == "release again", "it is complete, so it stays"
    assert builder_of(put(ci, "forced", replace=True)) == builder_of(ci.get_record(key)) == "forced"


def test_a_machine_without_a_signing_key_hits_its_own_records(
    open_store: OpenStore, put: Callable[..., Record], tmp_path: Path
) -> None:
    def machine(name: str) -> Keyring:
        return Keyring([CI.trusted], machine=MachineKey(tmp_path / name))

    key = put(open_store(), "before there were keys").recipe.key
    put(open_store(machine("a")), "a")
    put(open_store(machine("b")), "b")
    assert builder_of(open_store(machine("a")).get_record(key)) == "a"
    assert builder_of(open_store(machine("b")).get_record(key)) == "b"
    with pytest.raises(RecordUntrusted):
        open_store(machine("c")).get_record(key)


def test_an_unsigned_put_does_not_replace_a_signed_record(open_store: OpenStore, put: Callable[..., Record]) -> None:
    key = put(open_store(policy(RELEASE)), "release").recipe.key
    unable_to_sign = policy(None, CI)  # and without a machine key
    assert builder_of(put(open_store(unable_to_sign), "unsigned", replace=True)) == "unsigned", (
        "the record is returned, but not stored"
    )
    assert builder_of(open_store(policy(RELEASE)).get_record(key)) == "release"


def test_has_records_finds_domain_entries(open_store: OpenStore, record_of: Callable[..., Record]) -> None:
    store, key = open_store(policy(CI)), key_of(record_of)
    assert store.has_records([key]) == set()
    record = record_of(1, plan=store.put_bytes(b"x"))
    store.put_record(record)
    if isinstance(store, LocalStore):
        ac = store.root / "ac"
        (ac / domain_key("ci", key)[:2]).mkdir()
        (ac / key[:2] / key).rename(ac / domain_key("ci", key)[:2] / domain_key("ci", key))
    else:
        store.records[domain_key("ci", key)] = store.records.pop(key)
        store.signatures[domain_key("ci", key)] = store.signatures.pop(key)
    assert store.has_records([key]) == {key}
    assert store.get_record(key) == record


# -- the local store only


@pytest.fixture
def at_ci(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", policy(CI))


def entry_file(store: LocalStore, key: str) -> Path:
    return Path(store.entries.layout.entry_path("ac", key))


def rewrite(path: Path, data: bytes) -> None:
    """Write an entry, or replace its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data)


def test_rejects_a_record_replayed_under_another_key(
    at_ci: LocalStore, put: Callable[..., Record], record_of: Callable[..., Record]
) -> None:
    record = put(at_ci, "ci")
    other = key_of(record_of, 2)
    rewrite(entry_file(at_ci, other), entry_file(at_ci, record.recipe.key).read_bytes())
    with pytest.raises(RecordUntrusted, match="its signature does not fit"):
        at_ci.get_record(other)
    assert entry_file(at_ci, other).exists(), "the entry stays, because other machines may trust it"


def test_rejects_a_record_with_the_signature_of_another_target(
    at_ci: LocalStore, record_of: Callable[..., Record]
) -> None:
    """The document of one target has the valid signature of another target's document."""
    plan = at_ci.put_bytes(b"plan")
    ada, hopper = (record_of(number, plan=plan) for number in (89, 90))
    at_ci.put_record(ada)
    at_ci.put_record(hopper)
    ada_entry, hopper_entry = (
        ActionResult.from_bytes(entry_file(at_ci, record.recipe.key).read_bytes()) for record in (ada, hopper)
    )
    mixed = replace(hopper_entry, signatures=ada_entry.signatures)
    rewrite(entry_file(at_ci, hopper.recipe.key), mixed.to_bytes())
    with pytest.raises(RecordUntrusted, match="its signature does not fit"):
        at_ci.get_record(hopper.recipe.key)


def test_rejects_another_engine_with_a_valid_signature(
    at_ci: LocalStore, put: Callable[..., Record], record_of: Callable[..., Record]
) -> None:
    key = put(at_ci, "ci").recipe.key
    genuine = ActionResult.from_bytes(entry_file(at_ci, key).read_bytes())
    forger = LocalStore(at_ci.root)
    evil = record_of(1, who="evil", plan=forger.put_bytes(b"evil"))
    document = forger.put_bytes(evil.to_bytes())
    forged = record_entry(document, {evil.outputs["plan"].sha256: (evil.outputs["plan"],)}, genuine.signatures)
    rewrite(entry_file(at_ci, key), forged.to_bytes())
    assert builder_of(forger.get_record(key)) == "evil", "without a policy, the forged record is read"
    with pytest.raises(RecordUntrusted, match="its signature does not fit"):
        at_ci.get_record(key)
    assert builder_of(put(at_ci, "ci", replace=False)) == "ci"
    assert builder_of(LocalStore(at_ci.root, policy(None, CI)).get_record(key)) == "ci"


def test_no_flipped_bit_of_a_signed_entry_gives_another_record(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    record = put(at_ci, "ci")
    key = record.recipe.key
    path = entry_file(at_ci, key)
    valid = path.read_bytes()
    rejected = 0
    for position in range(len(valid)):
        for mask in (1, 0x20, 0x80):
            rewrite(path, valid[:position] + bytes([valid[position] ^ mask]) + valid[position + 1 :])
            try:
                found = at_ci.get_record(key)
            except (EntryCorrupt, RecordUntrusted):
                rejected += 1
                continue
            assert found in (None, record)
            rejected += found is None
    assert rejected > len(valid), "many of the flipped bits matter"
    rewrite(path, valid)
    assert at_ci.get_record(key) == record


def test_detects_changes_of_a_signed_document(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    record = put(at_ci, "ci")
    entry, document = at_ci.entry(record.recipe.key) or (None, b"")
    assert entry is not None
    assert entry.document is not None
    path = Path(at_ci.entries.layout.entry_path("cas", entry.document.sha256))
    saved = entry_file(at_ci, record.recipe.key).read_bytes()
    for position in range(0, len(document), 3):
        rewrite(path, document[:position] + bytes([document[position] ^ 1]) + document[position + 1 :])
        rewrite(entry_file(at_ci, record.recipe.key), saved)
        with pytest.raises(EntryCorrupt):
            at_ci.get_record(record.recipe.key)
    for wrong in (document[:-1], document + b" "):
        rewrite(path, wrong)
        rewrite(entry_file(at_ci, record.recipe.key), saved)
        with pytest.raises(EntryCorrupt):
            at_ci.get_record(record.recipe.key)
    rewrite(path, b"")
    rewrite(entry_file(at_ci, record.recipe.key), saved)
    assert at_ci.get_record(record.recipe.key) is None, "an empty file is not an entry"


# An empty string, values that are not base64, and the base64 of null, {}, [], [{"signer":1}], [[[[[[ and invalid UTF-8.
@pytest.mark.parametrize(
    "raw", ["", "!", "bnVsbA==", "e30=", "W10=", "W3sic2lnbmVyIjoxfV0=", "W1tbW1tb", 7, None, ["x"], "gICA"]
)
def test_a_record_with_an_unreadable_signature_counts_as_unsigned(
    at_ci: LocalStore, put: Callable[..., Record], raw: object
) -> None:
    key = put(at_ci, "ci").recipe.key
    path = entry_file(at_ci, key)
    rewrite(path, json.dumps({**json.loads(path.read_bytes()), "stdoutRaw": raw}).encode())
    with pytest.raises(RecordUntrusted, match="it is not signed"):
        at_ci.get_record(key)
    assert builder_of(LocalStore(at_ci.root).get_record(key)) == "ci"


def test_a_damaged_entry_does_not_hide_the_domains_own_entry(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    key = put(LocalStore(at_ci.root, policy(STRANGER)), "stranger").recipe.key
    put(at_ci, "ci")
    rewrite(entry_file(at_ci, key), b"garbage")
    assert builder_of(at_ci.get_record(key)) == "ci"
    assert not entry_file(at_ci, key).exists(), "it is in quarantine"
    rewrite(entry_file(at_ci, domain_key("ci", key)), b"garbage")
    with pytest.raises(EntryCorrupt):
        at_ci.get_record(key)
    assert at_ci.get_record(key) is None
    assert builder_of(put(at_ci, "ci again")) == "ci again"
    assert entry_file(at_ci, key).exists()


def test_entry_returns_a_trusted_entry_and_its_document(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    assert at_ci.entry("ab" * 32) is None
    key = put(LocalStore(at_ci.root, policy(STRANGER)), "stranger").recipe.key
    with pytest.raises(RecordUntrusted):
        at_ci.entry(key)
    put(at_ci, "ci")
    entry, document = at_ci.entry(key) or (None, b"")
    assert entry is not None
    assert [signature.signer for signature in entry.signatures] == ["ci"]
    assert entry.document == Output(hashlib.sha256(document).hexdigest(), len(document))
    assert builder_of(Record.from_bytes(document)) == "ci"
    entry_without_policy, _ = LocalStore(at_ci.root).entry(key) or (None, b"")
    assert entry_without_policy is not None
    assert [signature.signer for signature in entry_without_policy.signatures] == ["stranger"]


def test_a_fetched_record_keeps_its_document_and_signatures(
    at_ci: LocalStore, put: Callable[..., Record], tmp_path: Path
) -> None:
    record = put(at_ci, "ci")
    key = record.recipe.key
    entry, document = at_ci.entry(key) or (None, b"")
    assert entry is not None
    colleague = LocalStore(tmp_path / "other", policy(None, CI))
    with pytest.raises(BlobMissing):
        colleague.put_record_copy(record, document, entry.signatures)
    colleague.put_bytes(b"ci")
    assert colleague.put_record_copy(record, document, entry.signatures) == record
    assert colleague.get_record(key) == record
    assert entry_file(colleague, key).read_bytes() == entry_file(at_ci, key).read_bytes()
    stranger = LocalStore(tmp_path / "third", policy(None, RELEASE))
    stranger.put_bytes(b"ci")
    with pytest.raises(RecordUntrusted, match="not trusted"):
        stranger.put_record_copy(record, document, entry.signatures)
    with pytest.raises(RecordUntrusted, match="it is not signed"):
        stranger.put_record_copy(record, document)
    assert stranger.has_records([key]) == set()


def test_a_fetched_record_is_stored_beside_an_untrusted_one(
    at_ci: LocalStore, put: Callable[..., Record], tmp_path: Path
) -> None:
    record = put(at_ci, "ci")
    entry, document = at_ci.entry(record.recipe.key) or (None, b"")
    assert entry is not None
    put(LocalStore(tmp_path / "other"), "anyone")
    colleague = LocalStore(tmp_path / "other", policy(None, CI))
    colleague.put_bytes(b"ci")
    colleague.put_record_copy(record, document, entry.signatures)
    assert builder_of(colleague.get_record(record.recipe.key)) == "ci"
    assert entry_file(colleague, domain_key("ci", record.recipe.key)).exists()
    assert builder_of(LocalStore(tmp_path / "other").get_record(record.recipe.key)) == "anyone"


def test_verify_checks_domain_entries(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    key = put(LocalStore(at_ci.root), "anyone").recipe.key
    put(at_ci, "ci")
    report = check.verify(at_ci)
    assert (report.records, report.damage) == (2, ())
    rewrite(entry_file(at_ci, "ab" * 32), entry_file(at_ci, domain_key("ci", key)).read_bytes())
    (damage,) = check.verify(at_ci).damage
    assert (damage.name, damage.text) == ("ab" * 32, "it is the record of another key")


def test_finds_records_by_their_outputs_in_every_domain(at_ci: LocalStore, put: Callable[..., Record]) -> None:
    key = put(LocalStore(at_ci.root), "anyone").recipe.key
    put(at_ci, "ci")
    plan_of_ci, plan_of_anyone = (hashlib.sha256(plan).hexdigest() for plan in (b"ci", b"anyone"))
    (found,) = records_with_output(at_ci, plan_of_ci)
    assert (found.recipe.key, builder_of(found)) == (key, "ci")
    assert list(records_with_output(at_ci, plan_of_anyone)) == []
    found_without_policy = records_with_output(LocalStore(at_ci.root), plan_of_anyone)
    assert [builder_of(record) for record in found_without_policy] == ["anyone"]
    assert check.verify(at_ci).damage == (), "the search moves nothing to quarantine"


def test_collection_keeps_pinned_domain_entries_and_their_blobs(
    at_ci: LocalStore, put: Callable[..., Record], age: Callable[[LocalStore, float], None]
) -> None:
    for number in (1, 2):
        put(LocalStore(at_ci.root), "anyone", number)
        put(at_ci, f"ci {number}", number)
    key = put(at_ci, "ci 1", 1).recipe.key
    age(at_ci, 86400)
    report = collect(at_ci, max_age_s=3600, pinned=[key])
    assert (len(report.records_removed), report.records_kept) == (2, 2)
    assert builder_of(at_ci.get_record(key)) == "ci 1"
    assert at_ci.get_bytes(hashlib.sha256(b"ci 1").hexdigest()) == b"ci 1"
    assert not at_ci.has(hashlib.sha256(b"ci 2").hexdigest())


def test_does_not_parse_signatures_without_a_policy(
    at_ci: LocalStore, put: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = put(at_ci, "ci")
    monkeypatch.setattr("trtbuild.store.trust.action_result._parse_signatures", lambda raw: pytest.fail("parsed"))
    assert LocalStore(at_ci.root).get_record(record.recipe.key) == record
