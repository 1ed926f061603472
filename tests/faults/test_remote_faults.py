"""Remotes that are broken or hostile, behind a local store: what is built is right, it ends, and it is told.

This happens in one process: a store is asked for a record as the driver does, and what it cannot give is built. Whole
builds by the command line: tests/faults/test_hostile_builds.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hostile_cache import FAULTS, READ_FAULTS, HostileCache, redirect
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Output, Record
from trtbuild.core.trust import Everyone, Trust
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.action_result import ActionResult, list_entry, record_entry
from trtbuild.store.check import verify
from trtbuild.store.keyring import Keyring
from trtbuild.store.layered import LayeredStore
from trtbuild.store.local import LocalStore
from trtbuild.store.remote.directory import DirectoryTransport
from trtbuild.store.remote.http import HttpTransport
from trtbuild.store.remote.patience import Patient
from trtbuild.store.remote.settings import RemoteSettings
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.signing import Signer

#: A plan in five chunks; one file that no entry is large enough for; and one that may be in the entry itself.
CONTENTS = {
    "plan": random.Random(1).randbytes(1_300_000),
    "info": random.Random(2).randbytes(20_000),
    "log": b"nothing to tell",
}
#: What is built here: engines are not reproducible. So it is seen which of the two is used.
OURS = {**CONTENTS, "plan": random.Random(3).randbytes(1_200_000)}
RECIPE = Recipe("engine", 1, (("graph", "of the test"), ("sm", 89)))
OTHER = Recipe("engine", 1, (("graph", "of the test"), ("sm", 120)))

PATIENCE_S = 0.4
#: No case may take longer, whatever the remote does. Most take a tenth of a second.
BOUND_S = 15.0
SECRET = "correct-horse-battery"
USER = f"builder:{SECRET}"


class Machine:
    """One machine: a local store, and a remote that it reads and writes."""

    def __init__(self, folder: Path, url: str, trust: Trust | None = None) -> None:
        self.trust = trust or Everyone()
        settings = RemoteSettings("team", url, patience_s=PATIENCE_S)
        bare = DirectoryTransport(settings) if url.startswith("file:") else HttpTransport(settings, {})
        transport = Patient(bare, PATIENCE_S, jitter=lambda: 0.05)
        remote = RemoteStore(transport, "team", self.trust, connections=4)
        self.local = LocalStore(folder, self.trust)
        self.store = LayeredStore(self.local, [remote], [remote])
        self.built = 0

    def build(self, recipe: Recipe = RECIPE, contents: Mapping[str, bytes] = CONTENTS) -> dict[str, bytes]:
        """The outputs: those of a record that can be had, or else newly built ones."""
        with self.store.session(), self.store.building(recipe.key):
            for _ in range(3):
                try:
                    record = self.store.get_record(recipe.key, recipe)
                    if record is not None and all(self.store.has(each.sha256) for each in record.outputs.values()):
                        assert record.recipe.same_as(recipe)
                        return {name: self.store.get_bytes(each.sha256) for name, each in record.outputs.items()}
                except BlobMissing:
                    continue  # gone since: it is not there any more for whoever looks again
                except (EntryCorrupt, RecordUntrusted):
                    pass
                self.built += 1
                outputs = {name: self.store.put_bytes(data) for name, data in contents.items()}
                self.store.put_record(Record(recipe, outputs, {"who": "a colleague"}))
        raise AssertionError("what was built cannot be had")

    def end(self) -> dict[str, Any]:
        """What the end of a command does; the report of the remote."""
        self.store.finish()
        self.store.close()
        (report,) = self.store.reports()
        report["said"] = self.store.warnings()
        return report


@pytest.fixture
def filled() -> dict[tuple[str, str], bytes]:
    """What a colleague has published."""
    return dict(_published())


_memo: dict[tuple[str, str], bytes] = {}


def _published() -> dict[tuple[str, str], bytes]:
    if not _memo:
        with tempfile.TemporaryDirectory() as scratch, HostileCache() as cache:
            machine = Machine(Path(scratch) / "colleague", cache.url())
            machine.build()
            assert machine.end()["records_sent"] == 1
            _memo.update(cache.entries)
    return _memo


def assert_no_secret(*texts: object) -> None:
    for text in map(str, texts):
        for secret in (SECRET, base64.b64encode(USER.encode()).decode()):
            assert secret not in text


def check(machine: Machine, report: dict[str, Any], began: float) -> None:
    assert time.monotonic() - began < BOUND_S
    assert verify(machine.local).damage == ()
    assert_no_secret(json.dumps(report, default=str), repr(machine.store.readers[0].transport.place))


def test_an_undisturbed_remote_is_a_hit(tmp_path: Path, filled: dict[tuple[str, str], bytes]) -> None:
    with HostileCache(entries=filled) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
    assert machine.built == 0 and (report["hits"], report["failures"], report["said"]) == (1, 0, [])
    assert cache.authorizations == {f"Basic {base64.b64encode(USER.encode()).decode()}"}, (
        "there is a secret to be found"
    )


@pytest.mark.parametrize("kind", ["ac", "cas"])
@pytest.mark.parametrize("fault", [*FAULTS, *READ_FAULTS])
def test_what_is_read_from_a_bad_remote(
    tmp_path: Path, filled: dict[tuple[str, str], bytes], fault: str, kind: str
) -> None:
    began = time.monotonic()
    disturb = {**FAULTS, **READ_FAULTS}[fault]
    with HostileCache(disturb, "GET", kind, filled) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build(contents=OURS) == OURS
        report = machine.end()
    assert cache.delivered > 0
    assert machine.built == 1
    absent = fault in ("404", "410")
    assert report["failures"] + report["misses"] + report["blobs_gone"] > 0
    if not absent:
        assert report["said"], "a person is told"
    check(machine, report, began)


@pytest.mark.parametrize(("method", "kind"), [("HEAD", "cas"), ("PUT", "cas"), ("PUT", "ac")])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_sent_to_a_bad_remote(tmp_path: Path, fault: str, method: str, kind: str) -> None:
    began = time.monotonic()
    with HostileCache(FAULTS[fault], method, kind) as cache:
        machine = Machine(tmp_path / "here", cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
        assert cache.delivered > 0
        assert machine.built == 1
        assert report["records_sent"] + report["records_not_sent"] == 1
        assert bool(report["records_not_sent"]) == any("could not be sent" in text for text in report["said"])
        check(machine, report, began)
        cache.fault = None
        colleague = Machine(tmp_path / "colleague", cache.url(USER))
        assert colleague.build() == CONTENTS, "whatever was left there, it is nothing wrong"
        check(colleague, colleague.end(), began)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_no_credential_goes_elsewhere(tmp_path: Path, filled: dict[tuple[str, str], bytes], method: str) -> None:
    with HostileCache() as elsewhere, HostileCache(entries=filled if method == "GET" else {}) as cache:
        cache.fault, cache.method = redirect(f"http://127.0.0.1:{elsewhere.server.port}"), method
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
    assert cache.delivered > 0 and elsewhere.server.connections == 0
    assert report["said"] and report["given_up"]
    assert_no_secret(report)


def test_nobody_listens(tmp_path: Path) -> None:
    began = time.monotonic()
    with HostileCache() as cache:
        url = cache.url(USER)
    machine = Machine(tmp_path, url)
    assert machine.build() == CONTENTS
    report = machine.end()
    assert report["failures"] == 1 and report["given_up"] and report["skipped"] > 0
    check(machine, report, began)


# -- damage in a shared directory

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first bit": lambda data: bytes([data[0] ^ 0x80]) + data[1:],
    "middle bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "a byte short": lambda data: data[:-1],
    "a byte long": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "64 MB more": lambda data: data + bytes(64 << 20),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("target", ["entry", "document", "chunk", "blob"])
def test_damage_in_a_shared_directory(tmp_path: Path, damage: str, target: str) -> None:
    began = time.monotonic()
    share = tmp_path / "share"
    share.mkdir()
    first = Machine(tmp_path / "first", f"file://{share}")
    first.build()
    assert first.end()["records_sent"] == 1
    entry = share / "ac" / RECIPE.key[:2] / RECIPE.key
    action = ActionResult.from_bytes(entry.read_bytes())
    assert action.document is not None
    wanted = {
        "document": action.document.sha256,
        "chunk": next(file.sha256 for path, file in action.files if path.endswith("/2")),
        "blob": hashlib.sha256(CONTENTS["info"]).hexdigest(),
    }
    path = entry if target == "entry" else share / "cas" / wanted[target][:2] / wanted[target]
    right = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(DAMAGES[damage](right))
    machine = Machine(tmp_path / "here", f"file://{share}")
    built = machine.build(contents=OURS)
    report = machine.end()
    # what is in the entry itself needs no document; and of an entry, a bit may have no meaning
    assert built == (OURS if machine.built else CONTENTS)
    if target in ("chunk", "blob"):
        assert machine.built == 1 and report["blobs_gone"] == 1
        assert damage == "empty" or report["said"], "an empty file is taken for none"
    check(machine, report, began)


# -- entries that are made up

BIG = 10**15


def forged(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[tuple[str, str], bytes]], None]:
    """Has the entry of the record changed, as JSON."""

    def forge(entries: dict[tuple[str, str], bytes]) -> None:
        document = json.loads(entries["ac", RECIPE.key])
        change(document)
        entries["ac", RECIPE.key] = json.dumps(document).encode()

    return forge


def _files(document: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    return (file for file in document["outputFiles"] if file["path"].startswith(path))


def _all_sizes(document: dict[str, Any], path: str, size: int) -> None:
    for file in _files(document, path):
        file["digest"]["sizeBytes"] = str(size)


def _change_over(document: dict[str, Any]) -> None:
    first, second = (file for file in _files(document, "blob/") if file["path"].endswith(("/0", "/1")))
    first["digest"], second["digest"] = second["digest"], first["digest"]


def _bomb(entries: dict[tuple[str, str], bytes], chunks: int, size: int, output_size: int) -> None:
    """A record of the right key, whose plan is said to be of that many chunks and that large."""
    blob = "ab" * 32
    record = Record(RECIPE, {"plan": Output(blob, output_size)})
    text = record.to_bytes()
    document = Output(hashlib.sha256(text).hexdigest(), len(text))
    entries["cas", document.sha256] = text
    entry = record_entry(document, {blob: [Output("cd" * 32, size)] * chunks})
    entries["ac", RECIPE.key] = entry.to_bytes()


def _of_another_key(entries: dict[tuple[str, str], bytes]) -> None:
    text = Record(OTHER, {"plan": Output("ab" * 32, 5)}).to_bytes()
    document = Output(hashlib.sha256(text).hexdigest(), len(text))
    entries["cas", document.sha256] = text
    entries["cas", "ab" * 32] = b"other"
    entries["ac", RECIPE.key] = record_entry(document, {"ab" * 32: [Output("ab" * 32, 5)]}).to_bytes()


def _raw(data: bytes) -> Callable[[dict[tuple[str, str], bytes]], None]:
    return lambda entries: entries.__setitem__(("ac", RECIPE.key), data)


FORGERIES: dict[str, Callable[[dict[tuple[str, str], bytes]], None]] = {
    "no JSON": _raw(b"\xff\xfe garbage"),
    "JSON of something else": _raw(b'{"message": "welcome"}'),
    "a list": _raw(b"[]"),
    "nested deeply": _raw(b"[" * 3_000_000),
    "numbers without end": _raw(b'{"outputFiles": [], "exitCode": ' + b"9" * 100_000 + b"}"),
    "a failed action": forged(lambda entry: entry.update(exitCode=1)),
    "no document": forged(lambda entry: entry["outputFiles"].pop(0)),
    "no files": forged(lambda entry: entry.update(outputFiles=entry["outputFiles"][:1])),
    "a list of chunks": lambda entries: entries.__setitem__(
        ("ac", RECIPE.key), list_entry("ab" * 32, [Output("cd" * 32, 5), Output("ef" * 32, 5)]).to_bytes()
    ),
    "the record of another key": _of_another_key,
    "a document of a petabyte": forged(lambda entry: _all_sizes(entry, "record.json", BIG)),
    "chunks of a petabyte": forged(lambda entry: _all_sizes(entry, "blob/", BIG)),
    "chunks of no bytes": forged(lambda entry: _all_sizes(entry, "blob/", 0)),
    "ten thousand chunks that are not there": lambda entries: _bomb(entries, 10_000, 1 << 20, 10_000 << 20),
    "more chunks than an entry may have": lambda entries: _raw(b" " * (65 << 20))(entries),
    "petabytes, in right sums": lambda entries: _bomb(entries, 2, BIG, 2 * BIG),
    "chunks in another order": forged(lambda entry: entry["outputFiles"].reverse()),
    "two chunks changed over": forged(_change_over),
    "paths that lead out": forged(
        lambda entry: [file.update(path="blob/../../../etc/passwd") for file in _files(entry, "blob/")]
    ),
    "digests that lead out": forged(
        lambda entry: [file["digest"].update(hash="../" * 20 + "etc/passwd") for file in _files(entry, "blob/")]
    ),
    "other contents in the entry": forged(
        lambda entry: [file.update(contents=base64.b64encode(b"evil").decode()) for file in entry["outputFiles"]]
    ),
    "contents that are no text": forged(lambda entry: [file.update(contents=[1, {}]) for file in entry["outputFiles"]]),
    "signatures that are none": forged(lambda entry: entry.update(stdoutRaw={"a": ["b"]})),
}
#: These leave the record usable: what is altered has no say.
HARMLESS = {"other contents in the entry", "contents that are no text", "signatures that are none"}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_entry_that_is_made_up(tmp_path: Path, filled: dict[tuple[str, str], bytes], forgery: str) -> None:
    began = time.monotonic()
    before = filled["ac", RECIPE.key]
    FORGERIES[forgery](filled)
    assert filled["ac", RECIPE.key] != before
    with HostileCache(entries=filled) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build(contents=OURS) == (CONTENTS if forgery in HARMLESS else OURS)
        report = machine.end()
    if forgery not in HARMLESS:
        assert machine.built == 1
        assert report["said"] or report["blobs_gone"]
    check(machine, report, began)


# -- records that nobody who is trusted vouches for

CI, STRANGER = Signer.new("ci"), Signer.new("ci")


def keyring(signer: Signer | None = None, domain: str | None = None) -> Keyring:
    return Keyring([CI.trusted], read_domains=["ci"], signer=signer, domain=domain)


def signed_by(signer: Signer | None, domain: str | None, folder: Path, **what: Any) -> dict[tuple[str, str], bytes]:
    """What a machine publishes that signs so."""
    trust = None if signer is None else Keyring([signer.trusted], signer=signer, domain=domain)
    with HostileCache() as cache:
        machine = Machine(folder, cache.url(), trust)
        machine.build(**what)
        assert machine.end()["records_sent"] == 1
    return cache.entries


EVIL = {**CONTENTS, "plan": b"an evil plan"}


def _replayed(folder: Path) -> dict[tuple[str, str], bytes]:
    """A right signature of the trusted key, on another record, under this key; and its document changed to fit."""
    entries = signed_by(CI, "ci", folder, recipe=OTHER, contents=EVIL)
    entries["ac", RECIPE.key] = entries["ac", OTHER.key]
    return entries


def _signature_moved(folder: Path) -> dict[tuple[str, str], bytes]:
    """The trusted signature of the true record, on an evil one of the same key."""
    true = signed_by(CI, "ci", folder / "true")
    evil = signed_by(None, None, folder / "evil", contents=EVIL)
    document = json.loads(evil["ac", RECIPE.key])
    document["stdoutRaw"] = json.loads(true["ac", RECIPE.key])["stdoutRaw"]
    return {**true, **evil, ("ac", RECIPE.key): json.dumps(document).encode()}


UNTRUSTED: dict[str, Callable[[Path], dict[tuple[str, str], bytes]]] = {
    "unsigned": lambda folder: signed_by(None, None, folder, contents=EVIL),
    "signed by a stranger of the same name": lambda folder: signed_by(STRANGER, "ci", folder, contents=EVIL),
    "signed for another domain": lambda folder: signed_by(CI, "pr-7", folder, contents=EVIL),
    "replayed under another key": _replayed,
    "with the signature of another record": _signature_moved,
}


@pytest.mark.parametrize("case", UNTRUSTED)
def test_a_record_that_nobody_vouches_for_is_built(tmp_path: Path, case: str) -> None:
    entries = UNTRUSTED[case](tmp_path / "others")
    with HostileCache(entries=entries) as cache:
        machine = Machine(tmp_path / "here", cache.url(USER), keyring(CI, "ci"))
        assert machine.build() == CONTENTS
        report = machine.end()
        assert machine.built == 1
        assert report["untrusted"] + report["failures"] > 0 and report["said"]
        # ours stands beside it, for those who trust us
        colleague = Machine(tmp_path / "colleague", cache.url(USER), keyring())
        assert colleague.build() == CONTENTS
        colleague.end()
        assert colleague.built == 0
    assert_no_secret(report, CI, repr(machine.trust))
    assert CI.text().rpartition(":")[2] not in json.dumps(report)
