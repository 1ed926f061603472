"""Operations of a local store for fault injection, and conditions that must be true after each operation.

An operation works in a folder. Its store is in ``store/``, exported files are in ``out/``, and a shared directory is in
``team/`` (remote_operations.py).
"""

from __future__ import annotations

import operator
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local import locks
from trtbuild.store.local.leftovers import remove_leftovers
from trtbuild.store.local.local import LocalStore

SMALL = b"a blob that is one file" * 40
#: A blob of six chunks.
LARGE = random.Random(7).randbytes(1_300_000)
#: A blob whose first chunks are those of LARGE.
EDITED = LARGE[:900_000] + random.Random(8).randbytes(200_000)

#: The age of files that look old.
AGE_S = 100_000.0


@dataclass(frozen=True)
class Operation:
    """An operation. `prepare` creates the initial state. `run` can be called again, with the same result.

    With `starts_damaged`, some entries are damaged at the start, and may be damaged after a fault. `accepts` gets the
    result of a run with a fault, and the usual result. It returns whether the first one is valid.
    """

    prepare: Callable[[Path], None]
    run: Callable[[Path], object]
    starts_damaged: bool = False
    accepts: Callable[[Any, Any], bool] = operator.eq


def record(number: int, **outputs: Output) -> Record:
    return Record(Recipe("engine", 1, (("number", number),)), outputs, {"who": "somebody"})


def _store(folder: Path) -> LocalStore:
    return LocalStore(folder / "store")


def _digest(output: Output) -> object:
    return [output.sha256, output.size]


# -- put


def _prepare_nothing(folder: Path) -> None:
    return


def _put_small(folder: Path) -> object:
    return _digest(_store(folder).put_bytes(SMALL))


def _put_large(folder: Path) -> object:
    return _digest(_store(folder).put_bytes(LARGE))


def _with_large(folder: Path) -> None:
    _store(folder).put_bytes(LARGE)
    (folder / "edited").write_bytes(EDITED)
    _age(folder / "store")


def _put_file(folder: Path) -> object:
    return _digest(_store(folder).put_file(str(folder / "edited")))


# -- records


def _with_blobs(folder: Path) -> None:
    store = _store(folder)
    store.put_bytes(SMALL)
    store.put_bytes(LARGE)
    _age(folder / "store")


def _build(folder: Path) -> object:
    """A step of a build opens a session, locks the key, and stores the blobs and the record."""
    store = _store(folder)
    with store.session(), store.building(record(1).recipe.key):
        stored = store.get_record(record(1).recipe.key)
        if stored is None:
            stored = store.put_record(record(1, info=store.put_bytes(b"information"), plan=store.put_bytes(LARGE)))
    return stored.to_bytes().decode()


def _with_a_record(folder: Path) -> None:
    store = _store(folder)
    store.put_record(record(1, info=store.put_bytes(SMALL), plan=store.put_bytes(LARGE)))
    _age(folder / "store")


def _replace(folder: Path) -> object:
    store = _store(folder)
    with store.session():
        return store.put_record(record(1, plan=store.put_bytes(b"another plan")), replace=True).to_bytes().decode()


def _get(folder: Path) -> object:
    store = _store(folder)
    stored = store.get_record(record(1).recipe.key)
    assert stored is not None
    assert store.has(stored.outputs["plan"].sha256)
    return {name: len(store.get_bytes(output.sha256)) for name, output in stored.outputs.items()}


def _get_in_a_session(folder: Path) -> object:
    store = _store(folder)
    with store.session():
        return _get(folder)


def _copy(folder: Path) -> object:
    stored = _store(folder).get_record(record(1).recipe.key)
    assert stored is not None
    _store(folder).copy_to(stored.outputs["plan"].sha256, str(folder / "out" / "plan"))
    return len((folder / "out" / "plan").read_bytes())


def _with_out(folder: Path) -> None:
    _with_a_record(folder)
    (folder / "out").mkdir()
    (folder / "out" / "plan").write_bytes(b"the plan of an earlier build")


# -- damaged entries


def _with_a_wrong_document(folder: Path) -> None:
    _with_a_record(folder)
    action = _store(folder).get_action(record(1).recipe.key)
    assert action is not None and action.document is not None
    flip_one_bit(folder / "store" / "cas" / action.document.sha256[:2] / action.document.sha256)


def _with_a_wrong_chunk(folder: Path) -> None:
    _with_a_record(folder)
    stored = _store(folder).get_record(record(1).recipe.key)
    assert stored is not None
    chunk = _store(folder).files_of(stored.outputs["plan"].sha256)[2].sha256
    flip_one_bit(folder / "store" / "cas" / chunk[:2] / chunk)
    _age(folder / "store")


def _get_or_build(folder: Path) -> object:
    """Build the outputs again if the record cannot be used."""
    store = _store(folder)
    contents = {"info": SMALL, "plan": LARGE}
    with store.session():
        for _ in range(3):
            try:
                stored = store.get_record(record(1).recipe.key)
                if stored is not None:
                    return {
                        name: store.get_bytes(output.sha256) == contents[name]
                        for name, output in stored.outputs.items()
                    }
            except (EntryCorrupt, BlobMissing):
                pass
            store.put_record(record(1, **{name: store.put_bytes(data) for name, data in contents.items()}))
    return None


def flip_one_bit(path: Path) -> None:
    """Change one bit in the middle of a file, but not its modification time."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


# -- collection


def _with_old_records(folder: Path) -> None:
    store = _store(folder)
    large = store.put_bytes(LARGE)
    store.put_record(record(1, plan=large, info=store.put_bytes(SMALL)))
    store.put_record(record(2, plan=store.put_bytes(EDITED), info=store.put_bytes(b"of the second")))
    store.put_record(record(3, plan=store.put_bytes(b"used lately")))
    store.put_bytes(b"of no record")
    (folder / "store" / "quarantine" / f"cas-{'a' * 64}-00000000").write_bytes(b"wrong")
    (folder / "store" / "tmp" / f"1-{'ab' * 12}").write_bytes(b"half")
    (folder / "store" / "sessions" / f"2-{'cd' * 12}").touch()
    (folder / "store" / "locks" / ("b" * 64)).touch()
    _age(folder / "store")
    used = store.get_record(record(3).recipe.key)  # a lookup sets the time of the last use
    assert used is not None


def _collect(folder: Path) -> object:
    """The first two records are too old and are removed. The third one was used lately."""
    store = _store(folder)
    collect(store, max_age_s=AGE_S / 2, quarantine_age_s=AGE_S / 2)
    store.begin_read_only()  # so that the lookup does not count as a use
    return sorted(store.has_records(record(number).recipe.key for number in (1, 2, 3)))


OPERATIONS = {
    "put a small blob into nothing": Operation(_prepare_nothing, _put_small),
    "put a large blob into nothing": Operation(_prepare_nothing, _put_large),
    "put a file that shares chunks": Operation(_with_large, _put_file),
    "build a step": Operation(_with_blobs, _build),
    "replace a record": Operation(_with_a_record, _replace),
    "get a record and its blobs": Operation(_with_a_record, _get),
    "get within a session": Operation(_with_a_record, _get_in_a_session),
    "copy a blob over an output": Operation(_with_out, _copy),
    "find a wrong document and build": Operation(_with_a_wrong_document, _get_or_build, starts_damaged=True),
    "find a wrong chunk and build": Operation(_with_a_wrong_chunk, _get_or_build, starts_damaged=True),
    # a collection that cannot check whether a session is alive keeps more records
    "collect": Operation(_with_old_records, _collect, accepts=lambda result, usual: set(result) >= set(usual)),
}


# -- conditions


@dataclass(frozen=True)
class State:
    """The visible files below a folder: entries, finished exported files with their bytes, and names in the quarantine.

    Temporary files, in ``tmp/`` or beside their final path, are not included.
    """

    entries: frozenset[str]
    files: frozenset[tuple[str, bytes]]
    quarantined: frozenset[str]


def state(folder: Path) -> State:
    entries = [
        path for kind in ("cas", "ac") for root in ("store", "team") for path in folder.glob(f"{root}/{kind}/??/*")
    ]
    files = [path for path in folder.glob("out/*") if not path.name.endswith(".tmp")]
    return State(
        frozenset(str(path.relative_to(folder)) for path in entries),
        frozenset((path.name, path.read_bytes()) for path in files),
        # the last part of a name in the quarantine is random
        frozenset(path.name.rpartition("-")[0] for path in (folder / "store").glob("quarantine/*")),
    )


def assert_whole(folder: Path, before: State, after: State, *, may_be_damaged: bool) -> None:
    """Fail if an entry is damaged, lost or unexpected, if an exported file is not complete, or if a lock is held.

    `before` and `after` are the states around a run without faults.
    """
    store = _store(folder)
    damage = verify(store, quarantine=False).damage
    assert may_be_damaged or damage == (), f"wrong entries: {damage}"
    now = state(folder)
    assert now.entries <= before.entries | after.entries, f"unexpected: {now.entries - before.entries - after.entries}"
    assert now.entries >= before.entries & after.entries or may_be_damaged, (
        f"lost: {before.entries & after.entries - now.entries}"
    )
    assert now.files <= before.files | after.files, "an exported file is not complete"
    assert may_be_damaged or now.quarantined <= before.quarantined | after.quarantined, "a valid entry was quarantined"
    for path in [*(folder / "store").glob("locks/*"), *(folder / "store").glob("sessions/*")]:
        descriptor = locks.lock_if_abandoned(str(path))
        assert descriptor is not None, f"{path.name} is still held"
        os.close(descriptor)
    known = {"format", "cas", "ac", "tmp", "quarantine", "locks", "sessions"}
    assert {path.name for path in (folder / "store").glob("*")} <= known


def assert_clean(folder: Path) -> None:
    """Fail if `remove_leftovers` leaves a temporary file, a session, a file in the quarantine, or the lock of a key."""
    future_ns = time.time_ns() + int(1e15)  # in eleven days
    remove_leftovers(_store(folder).entries.layout, future_ns, 0.0)
    leftovers = [path for name in ("tmp", "sessions", "quarantine") for path in (folder / "store" / name).glob("*")]
    leftovers += [path for path in (folder / "store" / "locks").glob("*") if path.name not in ("store", "records")]
    assert leftovers == [], f"never removed: {leftovers}"


def _age(store: Path) -> None:
    for path in [*store.rglob("*")]:
        if path.is_file():
            old_ns = path.stat().st_mtime_ns - int(AGE_S * 1e9)
            os.utime(path, ns=(old_ns, old_ns))
