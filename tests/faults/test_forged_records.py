"""Forged parts of a remote's entries, and records without a trusted signature, are never used."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hostile_cache import HostileCache
from tests.faults.machine import (
    CONTENTS,
    LOCAL_CONTENTS,
    OTHER_RECIPE,
    RECIPE,
    USER,
    Machine,
    assert_ended_well,
    assert_no_secret,
    publish_build,
)
from trtbuild.core.recipes.record import Output, Record
from trtbuild.store.remote.records import MAX_ENTRY_SIZE
from trtbuild.store.trust.action_result import list_entry, record_entry
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer


@pytest.fixture(scope="module")
def published_entries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes]:
    return publish_build(tmp_path_factory.mktemp("colleague"))


@pytest.fixture
def remote_entries(published_entries: dict[tuple[str, str], bytes]) -> dict[tuple[str, str], bytes]:
    """A copy of the entries that another machine has published."""
    return dict(published_entries)


PETABYTE = 10**15


def forged(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[tuple[str, str], bytes]], None]:
    """A function that applies `change` to the JSON document of the record's entry."""

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


def _swap_two_chunks(document: dict[str, Any]) -> None:
    first, second = (file for file in _files(document, "blob/") if file["path"].endswith(("/0", "/1")))
    first["digest"], second["digest"] = second["digest"], first["digest"]


def _bomb(entries: dict[tuple[str, str], bytes], chunks: int, size: int, output_size: int) -> None:
    """Add a record with the correct key. Its plan declares `output_size` bytes, in `chunks` chunks of `size` bytes."""
    blob = "ab" * 32
    record = Record(RECIPE, {"plan": Output(blob, output_size)})
    text = record.to_bytes()
    document = Output(hashlib.sha256(text).hexdigest(), len(text))
    entries["cas", document.sha256] = text
    entry = record_entry(document, {blob: [Output("cd" * 32, size)] * chunks})
    entries["ac", RECIPE.key] = entry.to_bytes()


def _of_another_key(entries: dict[tuple[str, str], bytes]) -> None:
    """A record of OTHER_RECIPE, under the key of RECIPE."""
    text = Record(OTHER_RECIPE, {"plan": Output("ab" * 32, 5)}).to_bytes()
    document = Output(hashlib.sha256(text).hexdigest(), len(text))
    entries["cas", document.sha256] = text
    entries["cas", "ab" * 32] = b"other"
    entries["ac", RECIPE.key] = record_entry(document, {"ab" * 32: [Output("ab" * 32, 5)]}).to_bytes()


def _replaced_by(data: bytes) -> Callable[[dict[tuple[str, str], bytes]], None]:
    return lambda entries: entries.__setitem__(("ac", RECIPE.key), data)


#: Name → a function that forges the entries of a remote. In the entry of a record, the first file is the record's document.
FORGERIES: dict[str, Callable[[dict[tuple[str, str], bytes]], None]] = {
    "no JSON": _replaced_by(b"\xff\xfe garbage"),
    "JSON of something else": _replaced_by(b'{"message": "welcome"}'),
    "a list": _replaced_by(b"[]"),
    "nested deeply": _replaced_by(b"[" * 3_000_000),
    "numbers without end": _replaced_by(b'{"outputFiles": [], "exitCode": ' + b"9" * 100_000 + b"}"),
    "a failed action": forged(lambda entry: entry.update(exitCode=1)),
    "no document": forged(lambda entry: entry["outputFiles"].pop(0)),
    "no files": forged(lambda entry: entry.update(outputFiles=entry["outputFiles"][:1])),
    "a list of chunks": lambda entries: entries.__setitem__(
        ("ac", RECIPE.key), list_entry("ab" * 32, [Output("cd" * 32, 5), Output("ef" * 32, 5)]).to_bytes()
    ),
    "the record of another key": _of_another_key,
    "a document of a petabyte": forged(lambda entry: _all_sizes(entry, "record.json", PETABYTE)),
    "chunks of a petabyte": forged(lambda entry: _all_sizes(entry, "blob/", PETABYTE)),
    "chunks of no bytes": forged(lambda entry: _all_sizes(entry, "blob/", 0)),
    "ten thousand chunks that are not there": lambda entries: _bomb(entries, 10_000, 1 << 20, 10_000 << 20),
    "more bytes than an entry may have": lambda entries: _replaced_by(b" " * (MAX_ENTRY_SIZE + 1))(entries),
    "petabytes, in right sums": lambda entries: _bomb(entries, 2, PETABYTE, 2 * PETABYTE),
    "chunks in another order": forged(lambda entry: entry["outputFiles"].reverse()),
    "two chunks swapped": forged(_swap_two_chunks),
    "paths that lead out": forged(
        lambda entry: [file.update(path="blob/../../../etc/passwd") for file in _files(entry, "blob/")]
    ),
    "digests that lead out": forged(
        lambda entry: [file["digest"].update(hash="../" * 20 + "etc/passwd") for file in _files(entry, "blob/")]
    ),
    "other contents in the entry": forged(
        lambda entry: [file.update(contents=base64.b64encode(b"evil").decode()) for file in entry["outputFiles"]]
    ),
    "contents that are not text": forged(
        lambda entry: [file.update(contents=[1, {}]) for file in entry["outputFiles"]]
    ),
    "invalid signatures": forged(lambda entry: entry.update(stdoutRaw={"a": ["b"]})),
}
#: Forgeries that leave the record usable, because the changed part has no effect.
HARMLESS = {"other contents in the entry", "contents that are not text", "invalid signatures"}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_entry_is_not_used(tmp_path: Path, remote_entries: dict[tuple[str, str], bytes], forgery: str) -> None:
    """The build uses an entry only if the forged part has no effect (`HARMLESS`)."""
    began = time.monotonic()
    before = remote_entries["ac", RECIPE.key]
    FORGERIES[forgery](remote_entries)
    assert remote_entries["ac", RECIPE.key] != before
    with HostileCache(entries=remote_entries) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build(contents=LOCAL_CONTENTS) == (CONTENTS if forgery in HARMLESS else LOCAL_CONTENTS)
        report = machine.end()
    if forgery not in HARMLESS:
        assert machine.built == 1
        assert report["warnings"] or report["blobs_gone"]
    assert_ended_well(machine, report, began)


# -- records without a trusted signature

CI, UNKNOWN = Signer.new("ci"), Signer.new("ci")


def keyring(signer: Signer | None = None, domain: str | None = None) -> Keyring:
    return Keyring([CI.trusted], read_domains=["ci"], signer=signer, domain=domain)


def signed_by(signer: Signer | None, domain: str | None, folder: Path, **options: Any) -> dict[tuple[str, str], bytes]:
    """The entries that a machine with this signer and domain publishes."""
    return publish_build(
        folder, None if signer is None else Keyring([signer.trusted], signer=signer, domain=domain), **options
    )


EVIL = {**CONTENTS, "plan": b"an evil plan"}


def _replayed(folder: Path) -> dict[tuple[str, str], bytes]:
    """A signed record of another recipe, stored under the key of RECIPE."""
    entries = signed_by(CI, "ci", folder, recipe=OTHER_RECIPE, contents=EVIL)
    entries["ac", RECIPE.key] = entries["ac", OTHER_RECIPE.key]
    return entries


def _signature_moved(folder: Path) -> dict[tuple[str, str], bytes]:
    """The trusted signature of a genuine record, attached to an evil record of the same recipe."""
    genuine = signed_by(CI, "ci", folder / "true")
    evil = signed_by(None, None, folder / "evil", contents=EVIL)
    document = json.loads(evil["ac", RECIPE.key])
    document["stdoutRaw"] = json.loads(genuine["ac", RECIPE.key])["stdoutRaw"]
    return {**genuine, **evil, ("ac", RECIPE.key): json.dumps(document).encode()}


UNTRUSTED: dict[str, Callable[[Path], dict[tuple[str, str], bytes]]] = {
    "unsigned": lambda folder: signed_by(None, None, folder, contents=EVIL),
    "signed by an unknown key of the same name": lambda folder: signed_by(UNKNOWN, "ci", folder, contents=EVIL),
    "signed for another domain": lambda folder: signed_by(CI, "pr-7", folder, contents=EVIL),
    "replayed under another key": _replayed,
    "with the signature of another record": _signature_moved,
}


@pytest.mark.parametrize("case", UNTRUSTED)
def test_a_record_without_a_trusted_signature_is_built_again(tmp_path: Path, case: str) -> None:
    entries = UNTRUSTED[case](tmp_path / "others")
    with HostileCache(entries=entries) as cache:
        machine = Machine(tmp_path / "here", cache.url(USER), keyring(CI, "ci"))
        assert machine.build() == CONTENTS
        report = machine.end()
        assert machine.built == 1
        assert report["untrusted"] + report["failures"] > 0 and report["warnings"]
        # the new record is in the remote, too, for machines that trust its signing key
        colleague = Machine(tmp_path / "colleague", cache.url(USER), keyring())
        assert colleague.build() == CONTENTS
        colleague.end()
        assert colleague.built == 0
    assert_no_secret(report, CI, repr(machine.trust))
    assert CI.text().rpartition(":")[2] not in json.dumps(report)
