"""Push records to a remote cache, and pull records from one. No engine is built.

Rules
1. The complete records of `selection` are transferred. The result names each record that could not be transferred, with
   the reason, and its `ok` is then false. Packages that the selection has built, and that only this machine's own key has
   signed, are not named, because each machine can build them.
2. A file that the other side has is not transferred again. So an interrupted transfer continues where it stopped.
3. Signatures are not changed. Signatures of this machine's own key are not sent, because no other machine trusts this
   key. If a record has only such signatures, it is not sent. Records that are not trusted here are not transferred.
4. A pointer is a record that leads to another record. Pointers are sent last, and only if all other records could be
   sent, so that a pointer does not lead to a missing record. Records that are not sent because of rule 3 do not count
   here. If records are missing, no pointer in the remote is replaced.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace

from trtbuild.core.recipes.lookup_recipes import POINTER_STAGES
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.cache.documents import CachePull, CachePush, MissingRecord, PulledFrom, SentTo, UnsentRecord
from trtbuild.driver.cache.selection import Selection, select
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, RemoteFault, StoreError, UsageError
from trtbuild.store.layers.fetching import Fetched, NameLocks, fetch_records
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.layers.sendable import file_reader, read_complete_record, read_local_record, sendable_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.records import INLINE_FILE_SIZE
from trtbuild.store.remote.store import RemoteStore

#: Reports progress. The arguments: a description, the finished amount, the total, the unit (``records`` or ``bytes``).
Progress = Callable[[str, int, int, str], None]

#: The message about a record that is not sent because of rule 3.
ONLY_MACHINE_KEY = "only this machine's own key has signed it: configure a signing key, and build it with --force"

#: The message about a pointer that is not sent because of rule 4.
OTHERS_NOT_SENT = "it leads to other records, and not all records could be sent"

#: The number of records that are sent in parallel. The files of one record are sent one after another.
_PARALLEL_RECORDS = 8


def push(request: Request, remote: str | None, progress: Progress) -> CachePush:
    """Send the records of the requested models to the writable remotes, or to the one with the name `remote`.

    Raises UsageError if there is no such remote.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        targets = _choose_remotes(store.writers, remote, "may be written")
        with store.session():
            with store.without_uploads():
                selection = select(workspace)
                incomplete, _ = fetch_incomplete_records(store, selection.keys, progress)
            is_incomplete = bool(selection.missing or incomplete)
            senders = [_Sender(store.local, target, keeps_pointers=is_incomplete) for target in targets]
            for sender in senders:
                sender.send([key for key in selection.keys if key not in incomplete], progress)
    finally:
        store.close()
    not_sent = [
        UnsentRecord(remote=sender.name, step=selection.record_name(key), key=key, reason=reason)
        for sender in senders
        for key, reason in sorted(sender.failures.items())
        # No other machine needs a package that the selection has built, because each machine can build it.
        if not (key in selection.built_packages and reason == ONLY_MACHINE_KEY)
    ]
    missing = missing_records(selection, incomplete)
    return CachePush(
        ok=not (not_sent or missing),
        records=len(selection.keys),
        remotes=[sender.summary() for sender in senders],
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
        with store.without_uploads(_choose_remotes(store.readers, remote, "may be read")), store.session():
            selection = select(workspace)
            incomplete, fetched = fetch_incomplete_records(store, selection.keys, progress)
            sources = Counter(store.source_of(key) for key in selection.keys if key not in incomplete)
            # `source_of` names a remote only for the records that planning found there. The records that were fetched
            # afterwards count as ``local`` in `sources`, so they are added to their remote here.
            for name, result in fetched.items():
                sources[name] += sum(store.source_of(key) == "local" for key in result.fetched)
            downloaded_bytes = {report.name: report.bytes_down for report in store.reports()}
            warnings = store.warnings()
    finally:
        store.close()
    pulled = {name: records for name, records in sources.items() if name != "local" and records}
    missing = missing_records(selection, incomplete)
    return CachePull(
        ok=not missing,
        records=len(selection.keys),
        present=len(selection.keys) - len(incomplete) - sum(pulled.values()),
        remotes=[
            PulledFrom(name=name, records=pulled[name], bytes=downloaded_bytes.get(name, 0)) for name in sorted(pulled)
        ],
        missing=missing,
        warnings=warnings,
    )


def fetch_incomplete_records(
    store: LayeredStore, keys: Sequence[str], progress: Progress
) -> tuple[dict[str, str], dict[str, Fetched]]:
    """Fetch from the remotes each record that is incomplete in the local store, or that the lock file does not accept.

    Returns two mappings: record key → why the record is still incomplete, and remote's name → result of the fetch.
    Raises StoreUnavailable.
    """
    incomplete: dict[str, str] = {}
    # The keys of local records that differ from the lock file, but are accepted if no remote has the locked record.
    tolerated_keys: list[str] = []
    for key in keys:
        local_copy = read_complete_record(store.local, key)
        why = (
            "it is incomplete in the cache" if local_copy is None else store.lock_refusal(key, local_copy.record, False)
        )
        if why is not None:
            incomplete[key] = why
        if why is not None and local_copy is not None and store.lock_refusal(key, local_copy.record, True) is None:
            tolerated_keys.append(key)
    results: dict[str, Fetched] = {}
    for remote in store.readers:
        if not incomplete:
            break
        description, total = f"pull from {remote.name}", len(incomplete)

        def report(fetched: Fetched, description: str = description, total: int = total) -> None:
            progress(description, fetched.finished_count, total, "records")

        fetched = results[remote.name] = fetch_records(
            remote, list(incomplete), store.local, report, store.lock_refusal
        )
        incomplete.update({key: f"{remote.name}: {text}" for key, text in fetched.failed.items()})
        incomplete.update(fetched.untrusted)
        for key in (*fetched.fetched, *fetched.present):
            del incomplete[key]
    for key in tolerated_keys:
        incomplete.pop(key, None)
    return incomplete, results


def missing_records(selection: Selection, incomplete: dict[str, str]) -> list[MissingRecord]:
    """The missing records that a build would need, each with the reason.

    The package of a model is left out if another step of the model is missing, too.
    """
    to_run = [step for step in selection.missing if step.verdict == "run"]
    incomplete_models = {step.model for step in to_run if step.stage != "package"}
    steps = [
        MissingRecord(step=step.id, key=step.key, reason=step.reason.text)
        for step in to_run
        if step.stage != "package" or step.model not in incomplete_models
    ]
    records = [
        MissingRecord(step=selection.record_name(key), key=key, reason=why) for key, why in sorted(incomplete.items())
    ]
    return steps + records


def _choose_remotes(remotes: Iterable[RemoteStore], name: str | None, ability: str) -> tuple[RemoteStore, ...]:
    """The remote with this name, or all `remotes` if `name` is None. Raises UsageError if there is no such remote.

    `ability` describes the remotes in the error, after the words "no remote that".
    """
    remotes_by_name = {remote.name: remote for remote in remotes}
    if name is not None and name not in remotes_by_name:
        hint = (
            suggestion(name, remotes_by_name, "remotes")
            if remotes_by_name
            else "trtbuild doctor names the remotes with their modes; a remote of mode rw may be read and written"
        )
        raise UsageError(f"no remote that {ability} is called {name!r}", hint=hint)
    if not remotes_by_name:
        raise UsageError(
            f"no remote is configured that {ability}",
            hint='set TRTBUILD_REMOTES="team=rw:https://…", or add a [[remote]] section to your config.toml',
        )
    return tuple(remotes_by_name.values()) if name is None else (remotes_by_name[name],)


class _Sender:
    """Sends records from the local store to one remote."""

    def __init__(self, local: LocalStore, remote: RemoteStore, *, keeps_pointers: bool = False) -> None:
        self.name = remote.name
        self._keeps_pointers = keeps_pointers
        #: Key of a record → why it could not be sent.
        self.failures: dict[str, str] = {}
        self._local = local
        self._remote = remote
        self._read_file = file_reader(local)
        self._lock, self._blob_locks = threading.Lock(), NameLocks()
        #: SHA-256 → size in bytes: of all files of the records, and of the files that were sent.
        self._sizes_of_files: dict[str, int] = {}
        self._sizes_of_sent_files: dict[str, int] = {}
        self._records_sent = self._records_present = 0

    def send(self, keys: Sequence[str], progress: Progress) -> None:
        """Send the records with these keys that the remote lacks. Raises StoreUnavailable."""
        progress(f"push to {self.name}", 0, len(keys), "records")
        pointers = {key for key in keys if self._is_pointer(key)}
        done = 0
        with ThreadPoolExecutor(_PARALLEL_RECORDS) as pool:
            for batch in ([key for key in keys if key not in pointers], sorted(pointers)):  # rule 4
                if set(self.failures.values()) - {ONLY_MACHINE_KEY}:
                    self.failures.update(dict.fromkeys(batch, OTHERS_NOT_SENT))
                    break
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
            local_copy = read_local_record(self._local, key)
            return local_copy is not None and local_copy.record.recipe.stage in POINTER_STAGES
        return False

    def _send(self, key: str) -> str | None:
        """Send one record. Returns None, or the reason why it could not be sent."""
        record = read_complete_record(self._local, key)
        if record is None:
            return "it is not complete in the cache any more"
        sendable = sendable_record(record, self._remote.trust)
        if sendable is None:
            return ONLY_MACHINE_KEY
        sent: dict[str, int] = {}

        def read(file: Output) -> bytes | memoryview:
            data = self._read_file(file)
            sent[file.sha256] = file.size
            return data

        try:
            # The locks make sure that a blob which several records share is sent only once.
            with self._blob_locks.hold(sendable.files_by_blob):
                stored = self._remote.publish(sendable, read, keeps_pointers=self._keeps_pointers)
        except (RemoteFault, BlobMissing, EntryCorrupt) as error:
            return error.text
        with self._lock:
            self._sizes_of_files.update(
                {part.sha256: part.size for parts in sendable.files_by_blob.values() for part in parts}
            )
            if stored is sendable:
                self._records_sent += 1
                self._sizes_of_sent_files.update(sent)
            else:  # the remote had the record; small files were read to be a part of its entry, but not sent
                self._records_present += 1
                self._sizes_of_sent_files.update({name: size for name, size in sent.items() if size > INLINE_FILE_SIZE})
        return None

    def summary(self) -> SentTo:
        return SentTo(
            name=self.name,
            records_sent=self._records_sent,
            records_there=self._records_present,
            bytes_sent=sum(self._sizes_of_sent_files.values()),
            bytes_there=sum(
                size for name, size in self._sizes_of_files.items() if name not in self._sizes_of_sent_files
            ),
        )
