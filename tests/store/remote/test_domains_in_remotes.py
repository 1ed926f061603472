"""Machines of several domains write records to one remote. A domain is the origin of a record, such as ``ci``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.record import Record
from trtbuild.core.recipes.trust import domain_key
from trtbuild.errors import RecordUntrusted
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.trust.action_result import ActionResult
from trtbuild.store.trust.keyring import Keyring, MachineKey
from trtbuild.store.trust.signing import Signer

CI, STRANGER = (Signer(name, bytes([number] * 32)) for number, name in enumerate(("ci", "stranger")))


def signing(signer: Signer, domain: str | None = None) -> Keyring:
    """The trust policy of a machine that signs for `domain`, by default the signer's name."""
    return Keyring(signer=signer, domain=domain)


def trusting(*signers: Signer, read_domains: tuple[str, ...] = ()) -> Keyring:
    """The trust policy of a machine that only reads."""
    return Keyring([signer.trusted for signer in signers], read_domains=read_domains)


@pytest.fixture
def put(record_of: Callable[..., Record]) -> Callable[..., Record]:
    """A function that puts a record whose plan and provenance contain the name of its builder."""

    def publish(store: RemoteStore | LocalStore, who: str, number: int = 1) -> Record:
        return store.put_record(record_of(number, who=who, plan=store.put_bytes(who.encode())))

    return publish


def builder_of(record: Record | None) -> object:
    return None if record is None else record.provenance["who"]


def test_domains_share_a_remote_without_conflicts(put: Callable[..., Record]) -> None:
    transport = MemoryTransport()
    pr = RemoteStore(transport, "team", signing(CI, "pr-7"))
    release = RemoteStore(transport, "team", signing(CI, "release"))
    key = put(pr, "pr").recipe.key
    with pytest.raises(RecordUntrusted, match=r"signed for domain pr-7; this machine reads release$"):
        release.get_record(key)
    assert builder_of(put(release, "release")) == "release"
    assert (builder_of(pr.get_record(key)), builder_of(release.get_record(key))) == ("pr", "release")
    assert ("ac", domain_key("release", key)) in transport.entries
    reader = RemoteStore(transport, "team", trusting(CI, read_domains=("release",)))
    assert builder_of(reader.get_record(key)) == "release"


def test_the_first_writer_does_not_block_other_domains(put: Callable[..., Record]) -> None:
    transport = MemoryTransport()
    key = put(RemoteStore(transport, "team"), "anyone").recipe.key
    put(RemoteStore(transport, "team", signing(CI)), "ci")
    assert builder_of(RemoteStore(transport, "team", trusting(CI)).get_record(key)) == "ci"
    assert builder_of(RemoteStore(transport, "team").get_record(key)) == "anyone", (
        "nothing changes for machines that trust all records"
    )


def test_a_forwarded_record_is_stored_under_its_signers_domain(put: Callable[..., Record], tmp_path: Path) -> None:
    """A machine copies another domain's record to a remote, which already has an untrusted record under the same key."""
    local = LocalStore(tmp_path / "a", signing(CI))
    key = put(local, "ci").recipe.key
    transport = MemoryTransport()
    put(RemoteStore(transport, "team", signing(STRANGER)), "stranger")
    forwarding = Keyring([CI.trusted], signer=Signer("me", b"m" * 32))
    uploads = Uploads(LocalStore(tmp_path / "a", forwarding), [], lambda remote, found: None)
    assert uploads.send_now(RemoteStore(transport, "team", forwarding), key)
    assert ("ac", domain_key("ci", key)) in transport.entries
    assert builder_of(RemoteStore(transport, "team", trusting(CI)).get_record(key)) == "ci"


def test_never_uploads_a_record_with_a_machine_signature(put: Callable[..., Record], tmp_path: Path) -> None:
    trust = Keyring([CI.trusted], machine=MachineKey(tmp_path / "local.key"))
    local = LocalStore(tmp_path / "a", trust)
    key = put(local, "me").recipe.key
    assert builder_of(local.get_record(key)) == "me"
    transport = MemoryTransport()
    uploads = Uploads(local, [], lambda remote, found: None)
    assert not uploads.send_now(RemoteStore(transport, "team", trust), key)
    assert transport.entries == {}


def test_does_not_forward_an_untrusted_record(put: Callable[..., Record], tmp_path: Path) -> None:
    key = put(LocalStore(tmp_path / "a"), "anyone").recipe.key
    trust = signing(CI)
    uploads = Uploads(LocalStore(tmp_path / "a", trust), [], lambda remote, found: None)
    transport = MemoryTransport()
    with pytest.raises(RecordUntrusted):
        uploads.send_now(RemoteStore(transport, "team", trust), key)
    assert transport.entries == {}


def test_rejects_a_replayed_record_and_an_altered_signature(
    put: Callable[..., Record], record_of: Callable[..., Record]
) -> None:
    transport = MemoryTransport()
    store = RemoteStore(transport, "team", signing(CI))
    first, second = put(store, "first", 1).recipe.key, put(store, "second", 2).recipe.key
    transport.entries["ac", second] = transport.entries["ac", first]
    with pytest.raises(RecordUntrusted, match="does not fit"):
        RemoteStore(transport, "team", trusting(CI)).get_record(second)
    entry = ActionResult.from_bytes(transport.entries["ac", first])
    (signature,) = entry.signatures
    for altered in (replace(signature, domain="release"), replace(signature, value=bytes(64))):
        transport.entries["ac", first] = replace(entry, signatures=(altered,)).to_bytes()
        with pytest.raises(RecordUntrusted, match="does not fit"):
            RemoteStore(transport, "team", trusting(CI, read_domains=("ci", "release"))).get_record(first)


@pytest.mark.parametrize("stage", ["engine", "package", "trace-any"])
def test_a_new_record_of_a_domain_replaces_only_the_record_of_that_domain(
    record_of: Callable[..., Record], stage: str
) -> None:
    """An engine is replaced because the remote has lost its plan; a package and a pointer because they are outdated."""
    transport = MemoryTransport()
    pr, ci = (RemoteStore(transport, "team", signing(signer)) for signer in (STRANGER, CI))

    def put(store: RemoteStore, who: str) -> Record:
        return store.put_record(record_of(1, stage=stage, who=who, plan=store.put_bytes(who.encode())))

    key = put(pr, "pr").recipe.key
    first = put(ci, "first")
    if stage == "engine":
        del transport.entries["cas", first.outputs["plan"].sha256]
    assert builder_of(put(RemoteStore(transport, "team", signing(CI)), "second")) == "second"
    assert builder_of(RemoteStore(transport, "team", trusting(CI)).get_record(key)) == "second"
    assert builder_of(RemoteStore(transport, "team", trusting(STRANGER)).get_record(key)) == "pr"


def test_one_of_two_simultaneous_records_of_a_domain_wins(
    put: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both machines find only an untrusted record, before either of them has written the record of the domain."""
    transport = MemoryTransport()
    key = put(RemoteStore(transport, "team", signing(STRANGER)), "stranger").recipe.key
    transport_put = transport.put
    faster: list[str] = []

    def put_after_the_other_machine(kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        if name == domain_key("ci", key) and not faster:
            faster.append(name)
            assert builder_of(put(RemoteStore(transport, "team", signing(CI)), "faster")) == "faster"
        return transport_put(kind, name, data, once=once)

    monkeypatch.setattr(transport, "put", put_after_the_other_machine)
    assert builder_of(put(RemoteStore(transport, "team", signing(CI)), "slower")) == "faster"
    assert builder_of(RemoteStore(transport, "team", trusting(CI)).get_record(key)) == "faster"
