"""Operations that write to a shared directory (``team/``), or copy from it or from a bundle into the local store.

See operations.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from tests.faults.operations import AGE_S, EDITED, LARGE, SMALL, Operation, record
from trtbuild.core.recipes.record import Record
from trtbuild.errors import RemoteFault
from trtbuild.store.bundle import open_bundle, write_bundle
from trtbuild.store.collection.shared_directory import collect_directory
from trtbuild.store.layers.fetching import fetch_records
from trtbuild.store.layers.sendable import file_reader, read_local_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust.action_result import ActionResult

KEY = record(1).recipe.key


def _team(folder: Path) -> RemoteStore:
    return RemoteStore(DirectoryTransport(RemoteSettings("team", f"file://{folder}/team")), "team", connections=1)


def _local_record(folder: Path) -> LocalStore:
    store = LocalStore(folder / "store")
    store.put_record(record(1, info=store.put_bytes(SMALL), plan=store.put_bytes(LARGE)))
    return store


def _publish_to(folder: Path, store: LocalStore) -> object:
    sendable = read_local_record(store, KEY)
    assert sendable is not None
    remote = _team(folder)
    try:
        return remote.publish(sendable, file_reader(store)).document.decode()
    finally:
        remote.close()


# -- publish


def _with_a_record(folder: Path) -> None:
    _local_record(folder)
    (folder / "team").mkdir()


def _publish(folder: Path) -> object:
    return _publish_to(folder, LocalStore(folder / "store"))


def _with_half_of_the_blobs(folder: Path) -> None:
    """The shared directory lacks every second blob."""
    _with_a_record(folder)
    _publish(folder)
    for path in sorted((folder / "team").glob("cas/*/*"))[::2]:
        path.unlink()


# -- fetch_records


def _with_a_team(folder: Path) -> None:
    """A record of another machine, in a shared directory and in a bundle."""
    (folder / "team").mkdir()
    machine = folder / "other"
    store = LocalStore(machine / "store")
    store.put_record(record(1, info=store.put_bytes(SMALL), plan=store.put_bytes(LARGE)))
    _publish_to(folder, store)
    sendable = read_local_record(store, KEY)
    assert sendable is not None
    write_bundle(str(folder / "bundle"), {KEY: sendable.entry({})}, file_reader(store))


def _fetch(folder: Path) -> object:
    return _fetch_from(folder, _team(folder))


def _import(folder: Path) -> object:
    bundle = open_bundle(str(folder / "bundle"))
    try:
        return _fetch_from(folder, RemoteStore(bundle, "the bundle", connections=1))
    finally:
        bundle.close()


def _fetch_from(folder: Path, remote: RemoteStore) -> object:
    store = LocalStore(folder / "store")
    try:
        result = fetch_records(remote, [KEY], store)
    finally:
        remote.close()
    if result.failed:
        raise RemoteFault(result.failed[KEY])
    stored = store.get_record(KEY)
    assert stored is not None, result
    return {name: len(store.get_bytes(output.sha256)) for name, output in stored.outputs.items()}


# -- collect


def _with_old_records(folder: Path) -> None:
    """An old record, a record that was used lately, a file without a record, and a file of a killed writer."""
    store = LocalStore(folder / "other" / "store")
    (folder / "team").mkdir()
    team = _team(folder)
    for number, plan in ((1, LARGE), (2, EDITED)):
        store.put_record(record(number, plan=store.put_bytes(plan)))
        sendable = read_local_record(store, record(number).recipe.key)
        assert sendable is not None
        team.publish(sendable, file_reader(store))
    team.put_bytes(b"of no record")
    team.close()
    (folder / "team" / "tmp" / "unfinished").write_bytes(b"half")
    _age(folder)
    used = folder / "team" / "ac" / record(2).recipe.key[:2] / record(2).recipe.key
    os.utime(used)


def _with_condemned(folder: Path) -> None:
    """A first collection, long ago, has condemned files: it has listed them for removal."""
    _with_old_records(folder)
    _collect(folder)
    _age(folder, kept=record(2).recipe.key)


def _with_hidden(folder: Path) -> None:
    """A second collection, long ago, has hidden the condemned files: it has moved them out of ``cas/``."""
    _with_condemned(folder)
    _collect(folder)
    _age(folder, kept=record(2).recipe.key)


def _collect(folder: Path) -> object:
    collect_directory(str(folder / "team"), max_age_s=AGE_S / 2)
    return sorted(path.name for path in (folder / "team").glob("ac/*/*"))


def _age(folder: Path, kept: str = "") -> None:
    """Make the files of ``team/`` look old, except the file `kept`. The times in the lists of a collection change, too."""
    before_ns = time.time_ns() - int(AGE_S * 1e9)
    condemned = folder / "team" / "gc" / "condemned"
    if condemned.exists():
        document = json.loads(condemned.read_bytes())
        names = [name for group in document["since"].values() for name in group]
        condemned.chmod(0o644)
        condemned.write_text(json.dumps({**document, "since": {str(before_ns): names}}))
    for path in (folder / "team").glob("gc/hidden/*"):
        path.rename(path.with_name(str(before_ns)))
    for path in (folder / "team").rglob("*"):
        if path.is_file() and path.name != kept:
            os.utime(path, ns=(before_ns, before_ns))


REMOTE_OPERATIONS = {
    "publish to a shared directory": Operation(_with_a_record, _publish),
    "publish a record whose blobs are there in part": Operation(_with_half_of_the_blobs, _publish, starts_damaged=True),
    "fetch from a shared directory": Operation(_with_a_team, _fetch),
    "import a bundle": Operation(_with_a_team, _import),
    "collect a shared directory": Operation(_with_old_records, _collect),
    "collect condemned files": Operation(_with_condemned, _collect),
    "collect hidden files": Operation(_with_hidden, _collect),
}


def assert_shared_is_whole(folder: Path, *, may_be_damaged: bool) -> None:
    """Fail if a file in ``cas/`` does not match its name, or, unless `may_be_damaged`, if a record lacks a file."""
    for path in (folder / "team").glob("cas/*/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, f"{path.name} is wrong"
    for path in (folder / "team").glob("ac/*/*"):
        entry = ActionResult.from_bytes(path.read_bytes())
        for _, file in entry.files:
            blob = folder / "team" / "cas" / file.sha256[:2] / file.sha256
            assert may_be_damaged or blob.exists(), f"the entry {path.name} lacks {file.sha256}"
        if entry.document is not None and not may_be_damaged:
            document = folder / "team" / "cas" / entry.document.sha256[:2] / entry.document.sha256
            assert Record.from_bytes(document.read_bytes()).recipe.key == path.name
    # a killed first writer may leave an empty directory, which would have become ``tmp/``
    names = {path.name for path in (folder / "team").glob("*") if not (path.name.startswith(".") and path.is_dir())}
    assert names <= {"ac", "cas", "tmp", "gc"}, names


def assert_shared_is_clean(folder: Path) -> None:
    """Fail if a collection does not remove all files that killed writers left."""
    if (folder / "team").exists():
        for path in (folder / "team" / "tmp").glob("*"):
            os.utime(path, (1, 1))  # long ago, so that the collection removes it
        collect_directory(str(folder / "team"))
        assert list((folder / "team" / "tmp").glob("*")) == []
