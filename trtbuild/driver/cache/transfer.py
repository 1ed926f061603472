"""Push records to a remote cache, and pull records from one. Nothing is built.

Rules
1. Complete records are transferred (`selection`). The result names each record that could not be transferred, with the
   reason. Then `ok` is false; a build, on the other hand, does not fail because of a remote.
2. A file that the other side has is not transferred again. So an interrupted transfer continues where it stopped.
3. Signatures are not changed. Records that only this machine's own key signs are not sent, and records that are not
   trusted here are neither fetched nor sent.
4. Pointers are sent last, after the records that they lead to, so that a pointer never leads to a missing record.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace

from trtbuild.core.recipes.keys import POINTER_STAGES
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.cache.documents import CachePull, CachePush, MissingRecord, PulledFrom, SentTo, UnsentRecord
from trtbuild.driver.cache.selection import Selection, select
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, RemoteFault, StoreError, UsageError
from trtbuild.store.layers.fetching import Brought, Turns, bring
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.layers.sendable import for_others, found_locally, held, reading
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.records import INLINE
from trtbuild.store.remote.store import RemoteStore

#: A function that reports progress. Its arguments: a description, the finished part, the total, and the unit of both,
#: ``records`` or ``bytes``.
Progress = Callable[[str, int, int, str], None]

#: The reason why a record that only this machine's own key signs is not sent, and what to do.
OWN_ONLY = "only this machine vouches for it: configure a signing key, and build it with --force"

#: The number of records that are sent in parallel. Most consist of a few small files, which are sent one after another.
_PARALLEL = 8


def push(request: Request, remote: str | None, progress: Progress) -> CachePush:
    """Send the records of the requested models to the writable remotes, or to the one with the name `remote`.

    Raises UsageError if there is no such remote.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        targets = _named(store.writers, remote, "may be written")
        with store.session():
            with store.only_reading():
                selection = select(workspace)
                lacking, _ = complete(store, selection.keys, progress)
            sendings = [_Sending(store.local, target) for target in targets]
            for sending in sendings:
                sending.send([key for key in selection.keys if key not in lacking], progress)
    finally:
        store.close()
    not_sent = [
        UnsentRecord(remote=sending.name, step=selection.named(key), key=key, reason=reason)
        for sending in sendings
        for key, reason in sorted(sending.failures.items())
        if (key in selection.packed, reason) != (True, OWN_ONLY)  # other machines can make this package themselves
    ]
    missing = missing_records(selection, lacking)
    return CachePush(
        ok=not (not_sent or missing),
        records=len(selection.keys),
        remotes=[sending.sent() for sending in sendings],
        not_sent=not_sent,
        missing=missing,
        warnings=store.warnings(),
    )


def pull(request: Request, remote: str | None, progress: Progress) -> CachePull:
    """Copy the records of the requested models from the readable remotes, or from `remote`, into the local store.

    Raises UsageError if there is no such remote.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        with store.only_reading(_named(store.readers, remote, "may be read")), store.session():
            selection = select(workspace)
            lacking, brought = complete(store, selection.keys, progress)
            sources = Counter(store.source_of(key) for key in selection.keys if key not in lacking)
            # planning fetched some records (`sources`), and `complete` fetched the others (`brought`)
            for name, each in brought.items():
                sources[name] += sum(store.source_of(key) == "local" for key in each.came)
            moved = {report.name: report.bytes_down for report in store.reports()}
            warnings = store.warnings()
    finally:
        store.close()
    came = {name: records for name, records in sources.items() if name != "local" and records}
    missing = missing_records(selection, lacking)
    return CachePull(
        ok=not missing,
        records=len(selection.keys),
        present=len(selection.keys) - len(lacking) - sum(came.values()),
        remotes=[PulledFrom(name=name, records=came[name], bytes=moved.get(name, 0)) for name in sorted(came)],
        missing=missing,
        warnings=warnings,
    )


def complete(store: LayeredStore, keys: Sequence[str], progress: Progress) -> tuple[dict[str, str], dict[str, Brought]]:
    """Fetch the records with these keys that are incomplete in the local store from the remotes.

    Returns the keys that are still incomplete, each with the reason, and the result of each remote by its name. Raises
    StoreUnavailable.
    """
    lacking: dict[str, str] = {}
    tolerated: list[str] = []
    for key in keys:
        found = held(store.local, key)
        why = "it is incomplete in the cache" if found is None else store.refuses(key, found.record, False)
        if why is not None:
            lacking[key] = why
        if why is not None and found is not None and store.refuses(key, found.record, True) is None:
            tolerated.append(key)
    came: dict[str, Brought] = {}
    for remote in store.readers:
        if not lacking:
            break
        what, total = f"pull from {remote.name}", len(lacking)

        def report(brought: Brought, what: str = what, total: int = total) -> None:
            progress(what, brought.done, total, "records")

        brought = came[remote.name] = bring(remote, list(lacking), store.local, report, store.refuses)
        lacking.update({key: f"{remote.name}: {text}" for key, text in brought.failed.items()})
        lacking.update(brought.untrusted)
        for key in (*brought.came, *brought.present):
            del lacking[key]
    for key in tolerated:  # no remote has a record that matches the lock
        lacking.pop(key, None)
    return lacking, came


def missing_records(selection: Selection, lacking: dict[str, str]) -> list[MissingRecord]:
    """The missing records because of which a build would have to run steps, each with the reason.

    A package that is missing only because its engines are missing is left out.
    """
    to_run = [step for step in selection.missing if step.verdict == "run"]
    lack_more = {step.model for step in to_run if step.stage != "package"}
    steps = [
        MissingRecord(step=step.id, key=step.key, reason=step.reason.text)
        for step in to_run
        if step.stage != "package" or step.model not in lack_more
    ]
    records = [MissingRecord(step=selection.named(key), key=key, reason=why) for key, why in sorted(lacking.items())]
    return steps + records


def _named(remotes: Iterable[RemoteStore], name: str | None, what: str) -> tuple[RemoteStore, ...]:
    """The remote with this name, or all remotes if it is None. Raises UsageError if there is no such remote."""
    known = {remote.name: remote for remote in remotes}
    if name is not None and name not in known:
        hint = (
            suggestion(name, known, "remotes") if known else "its mode has to be rw; trtbuild doctor names the remotes"
        )
        raise UsageError(f"no remote that {what} is called {name!r}", hint=hint)
    if not known:
        raise UsageError(
            f"no remote is configured that {what}",
            hint='set TRTBUILD_REMOTES="team=rw:https://…", or add a [[remote]] section to your config.toml',
        )
    return tuple(known.values()) if name is None else (known[name],)


class _Sending:
    """Sends records from the local store to one remote."""

    def __init__(self, local: LocalStore, remote: RemoteStore) -> None:
        self.name = remote.name
        #: Key of a record that could not be sent → the reason.
        self.failures: dict[str, str] = {}
        self._local = local
        self._remote = remote
        self._read = reading(local)
        self._lock, self._turns = threading.Lock(), Turns()
        #: SHA-256 of a file → its size in bytes.
        self._named: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._came = self._present = 0

    def send(self, keys: Sequence[str], progress: Progress) -> None:
        """Send the records with these keys that the remote lacks. Raises StoreUnavailable."""
        progress(f"push to {self.name}", 0, len(keys), "records")
        pointers = {key for key in keys if self._is_pointer(key)}
        done = 0
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for batch in ([key for key in keys if key not in pointers], sorted(pointers)):  # rule 4
                running = {pool.submit(self._send, key): key for key in batch}
                try:
                    for future in as_completed(running):
                        why_not = future.result()
                        if why_not is not None:
                            self.failures[running[future]] = why_not
                        done += 1
                        progress(f"push to {self.name}", done, len(keys), "records")
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise

    def _is_pointer(self, key: str) -> bool:
        with suppress(StoreError, KeyError, ValueError):  # `_send` reports the error
            found = found_locally(self._local, key)
            return found is not None and found.record.recipe.stage in POINTER_STAGES
        return False

    def _send(self, key: str) -> str | None:
        """Send one record. Returns None, or the reason why it could not be sent."""
        found = held(self._local, key)
        if found is None:
            return "it is not complete in the cache any more"
        found = for_others(found, self._remote.trust)
        if found is None:
            return OWN_ONLY
        sent: dict[str, int] = {}

        def read(file: Output) -> bytes | memoryview:
            data = self._read(file)
            sent[file.sha256] = file.size
            return data

        try:
            with self._turns.of(found.parts):  # a blob of several records is sent once
                there = self._remote.publish(found, read)
        except (RemoteFault, BlobMissing, EntryCorrupt) as error:
            return error.text
        with self._lock:
            self._named.update({part.sha256: part.size for parts in found.parts.values() for part in parts})
            if there is found:
                self._came += 1
                self._sent.update(sent)
            else:  # small files were read for the entry, but not sent
                self._present += 1
                self._sent.update({name: size for name, size in sent.items() if size > INLINE})
        return None

    def sent(self) -> SentTo:
        """The numbers of records and bytes that were sent, and that the remote already had."""
        return SentTo(
            name=self.name,
            records_sent=self._came,
            records_there=self._present,
            bytes_sent=sum(self._sent.values()),
            bytes_there=sum(size for name, size in self._named.items() if name not in self._sent),
        )
