"""Remotes whose users trust only some signers: which records are found and sent, and under which keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Trust, TrustAll, domain_key
from trtbuild.errors import RecordUntrusted
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.trust.action_result import record_entry
from trtbuild.store.trust.keyring import Keyring, MachineKey
from trtbuild.store.trust.signing import Signer

CI, PULL_REQUEST, STRANGER = (
    Signer(name, bytes([number] * 32)) for number, name in enumerate(("ci", "pr", "stranger"), 1)
)

RecordOf = Callable[..., Record]
Build = Callable[[LayeredStore, str], Record]


def signing(signer: Signer, *trusted: Signer, domain: str | None = None, read_domains: tuple[str, ...] = ()) -> Keyring:
    """The trust policy of a machine that signs with `signer` and also reads the records of `read_domains`. `domain` is the
    origin of its records, by default the signer's name."""
    return Keyring([other.trusted for other in trusted], signer=signer, domain=domain, read_domains=read_domains)


def reading(*trusted: Signer, domains: tuple[str, ...] = ()) -> Keyring:
    """The trust policy of a machine that only reads."""
    return Keyring([signer.trusted for signer in trusted], read_domains=domains)


@pytest.fixture
def team() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def open_as(tmp_path: Path, team: MemoryTransport) -> Callable[..., LayeredStore]:
    """A function that opens a store with an empty local cache and the team's remote. Its argument is the trust policy."""
    numbers = itertools.count()

    def open_store(trust: Trust) -> LayeredStore:
        remote = RemoteStore(team, "team", trust, connections=4)
        return LayeredStore(LocalStore(tmp_path / f"local{next(numbers)}", trust), [remote], [remote])

    return open_store


@pytest.fixture
def build(record_of: RecordOf) -> Build:
    """A function that stores a record under one fixed key and sends it. Its second argument is the text in the record's
    output ``plan``."""

    def put_and_send(store: LayeredStore, who: str) -> Record:
        record = store.put_record(record_of(1, who=who, plan=store.put_bytes(who.encode())))
        store.finish()
        return record

    return put_and_send


def plan_of(store: LayeredStore, key: str) -> str | None:
    """The plan of the record, or None if there is no record."""
    record = store.get_record(key)
    return None if record is None else store.get_bytes(record.outputs["plan"].sha256).decode()


def test_a_signed_record_is_found_if_its_key_is_trusted(open_as: Callable[..., LayeredStore], build: Build) -> None:
    key = build(open_as(signing(CI)), "ci").recipe.key
    assert plan_of(open_as(reading(CI)), key) == "ci"
    assert plan_of(open_as(TrustAll()), key) == "ci"
    with pytest.raises(RecordUntrusted, match="in team does not count: signed by a key that is not trusted"):
        open_as(reading(PULL_REQUEST)).get_record(key)


def test_stores_the_signature_in_the_local_store(open_as: Callable[..., LayeredStore], build: Build) -> None:
    key = build(open_as(signing(CI)), "ci").recipe.key
    mine = open_as(reading(CI))
    assert plan_of(mine, key) == "ci"
    assert mine.local.get_record(key) is not None, "the stored signature is verified again"


def test_a_record_of_a_pull_request_does_not_block_a_release(
    open_as: Callable[..., LayeredStore], build: Build, team: MemoryTransport
) -> None:
    key = build(open_as(signing(PULL_REQUEST, CI, domain="pr-7")), "pull request").recipe.key
    release = open_as(signing(CI))
    with pytest.raises(RecordUntrusted):
        release.get_record(key)
    assert release.reports()[0].untrusted == 1
    entry_before = team.entries["ac", key]
    build(release, "release")
    assert team.entries["ac", key] == entry_before, "entries are write-once"
    assert ("ac", domain_key("ci", key)) in team.entries
    assert plan_of(open_as(reading(CI)), key) == "release"
    assert plan_of(open_as(signing(PULL_REQUEST, CI, domain="pr-7")), key) == "pull request", (
        "its own record, which is stored under the step's key"
    )


def test_rejects_a_record_of_a_domain_that_is_not_read(open_as: Callable[..., LayeredStore], build: Build) -> None:
    key = build(open_as(signing(CI, domain="pr-7")), "pull request").recipe.key
    with pytest.raises(RecordUntrusted, match="signed for domain pr-7"):
        open_as(reading(CI, domains=("release", "ci"))).get_record(key)


def test_an_unsigned_record_is_rejected_and_does_not_block_a_signed_one(
    open_as: Callable[..., LayeredStore], build: Build
) -> None:
    key = build(open_as(TrustAll()), "anyone").recipe.key
    ci = open_as(signing(CI))
    with pytest.raises(RecordUntrusted, match="not signed"):
        ci.get_record(key)
    build(ci, "ci")
    assert plan_of(open_as(reading(CI)), key) == "ci"


@pytest.mark.parametrize("where", ["remote", "local"])
def test_reports_why_the_record_of_a_domain_that_is_read_is_rejected(
    open_as: Callable[..., LayeredStore], build: Build, tmp_path: Path, where: str
) -> None:
    """The record under the step's key is not signed. The record under the key for the domain ``ci`` is signed with a
    revoked key. The error names the revoked key."""

    def open_store(trust: Trust) -> LayeredStore:
        return open_as(trust) if where == "remote" else LayeredStore(LocalStore(tmp_path / "one", trust))

    key = build(open_store(TrustAll()), "anyone").recipe.key
    build(open_store(signing(CI)), "ci")
    with pytest.raises(RecordUntrusted, match="key 'ci' is revoked"):
        open_store(Keyring([CI.trusted], revoked=[CI.public_key])).get_record(key)


def test_does_not_upload_a_record_with_a_machine_signature(
    open_as: Callable[..., LayeredStore], build: Build, team: MemoryTransport, tmp_path: Path
) -> None:
    store = open_as(Keyring([CI.trusted], machine=MachineKey(tmp_path / "local.key")))
    record = build(store, "me")
    assert store.get_record(record.recipe.key) is not None
    assert not team.entries


def test_rejects_a_record_replayed_under_another_key_or_domain(
    open_as: Callable[..., LayeredStore], build: Build, team: MemoryTransport, record_of: RecordOf
) -> None:
    key = build(open_as(signing(CI, domain="pr-7")), "ci").recipe.key
    other = record_of(2).recipe.key
    entry = team.entries["ac", key]
    for stored_under, requested in ((other, other), (domain_key("ci", key), key), (domain_key("ci", other), other)):
        team.entries["ac", stored_under] = entry
        with pytest.raises(RecordUntrusted):
            open_as(reading(CI, domains=("ci",))).get_record(requested)


def test_parses_no_document_before_its_signature_is_verified(
    open_as: Callable[..., LayeredStore], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = build(open_as(signing(STRANGER)), "stranger").recipe.key
    store = open_as(reading(CI))

    def fail_to_parse(*_: object) -> Record:
        raise AssertionError("a document of an untrusted signer was parsed")

    monkeypatch.setattr(Record, "from_bytes", fail_to_parse)
    with pytest.raises(RecordUntrusted):
        store.get_record(key)


def test_no_flipped_bit_of_an_entry_gives_another_engine(
    open_as: Callable[..., LayeredStore], build: Build, team: MemoryTransport
) -> None:
    key = build(open_as(signing(CI)), "ci").recipe.key
    entry = team.entries["ac", key]
    rejected = 0
    for position in range(0, len(entry), 11):
        flipped = bytes([entry[position] ^ 1])
        team.entries["ac", key] = entry[:position] + flipped + entry[position + 1 :]
        try:
            assert plan_of(open_as(reading(CI)), key) in (None, "ci")
        except RecordUntrusted:
            rejected += 1
    assert rejected, "some of the flipped bits are in the signature"


class WriteOnce(MemoryTransport):
    """A remote that never replaces an existing entry, like the server of docs/team-cache/nginx.conf."""

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        return super().put(kind, name, data, once=True)


@pytest.mark.parametrize("garbage", [b"{", None], ids=["not a valid entry", "document missing"])
def test_an_invalid_entry_under_a_key_does_not_block_sharing(
    tmp_path: Path, record_of: RecordOf, garbage: bytes | None
) -> None:
    transport = WriteOnce()

    def open_store(name: str, trust: Trust) -> LayeredStore:
        remote = RemoteStore(transport, "team", trust, connections=4)
        return LayeredStore(LocalStore(tmp_path / name, trust), [remote], [remote])

    ci, reader = open_store("ci", signing(CI)), open_store("reader", reading(CI))
    record = record_of(1, who="ci", plan=ci.put_bytes(b"ci"))
    without_document = record_entry(Output("0" * 64, 10), {}).to_bytes()
    transport.entries["ac", record.recipe.key] = garbage or without_document
    ci.put_record(record)
    ci.finish()
    assert ci.reports()[0].records_sent == 1
    assert plan_of(reader, record.recipe.key) == "ci"
