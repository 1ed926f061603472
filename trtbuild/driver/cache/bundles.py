"""Export the records of a cache to one file (a bundle), and import a bundle. No engine is built.

Signatures are treated as in rule 3 of `transfer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from trtbuild.core.planning.locks import Lock
from trtbuild.core.values.encoding import is_digest
from trtbuild.driver.cache.documents import CacheExport, CacheImport, RefusedRecord
from trtbuild.driver.cache.selection import select
from trtbuild.driver.cache.transfer import ONLY_MACHINE_KEY, Progress, fetch_incomplete_records, missing_records
from trtbuild.driver.project import locked, wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BundleRefused, StoreError, UsageError
from trtbuild.store.bundle import open_bundle, write_bundle
from trtbuild.store.layers.fetching import Fetched, fetch_records
from trtbuild.store.layers.sendable import file_reader, read_complete_record, sendable_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.trust.action_result import ActionResult, record_document

#: The largest number of entries that an error lists.
_MAX_LISTED = 20


def export_models(request: Request, file: Path, progress: Progress) -> CacheExport:
    """Write the records of the requested models, from the local store and the remotes, to one file.

    Raises UsageError if `file` is the name of a model and no model is requested, because the file was probably
    forgotten. Raises StoreError if a record that a build needs is missing or cannot be exported, or if the file cannot
    be written.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        if not request.models and str(file) in workspace.models:
            raise UsageError(
                f"{str(file)!r} is a model, but the first argument is the file to write",
                hint=f"trtbuild cache export {file}.bundle {file}",
            )
        with store.without_uploads(), store.session():
            selection = select(workspace)
            incomplete, _ = fetch_incomplete_records(store, selection.keys, progress)
            missing_texts = [f"{record.step}: {record.reason}" for record in missing_records(selection, incomplete)]
            if missing_texts:
                raise StoreError(
                    f"a build would need these records, which are missing:\n    {_limited_list(missing_texts)}",
                    hint="trtbuild build, then export again",
                )
            left_out: dict[str, str] = {}
            entries = _exportable_entries(store.local, selection.keys, left_out)
            # a package that the selection itself has built may be left out, because any machine can build it
            refused_texts = [
                f"{selection.record_name(key)}: {why}"
                for key, why in left_out.items()
                if key not in selection.built_packages
            ]
            if refused_texts:
                raise StoreError(f"these records cannot be exported:\n    {_limited_list(refused_texts)}")
            return _write_entries(file, entries, {}, store.local, progress)
    finally:
        store.close()


def export_all(request: Request, file: Path, progress: Progress) -> CacheExport:
    """Write the exportable records of the local store to one file. The result names the other records.

    A record is exportable if it is complete, if it is trusted here, and if its signatures are not only those of this
    machine's own key. Raises StoreError if the file cannot be written.
    """
    local = _open_local_store(request)
    left_out: dict[str, str] = {}
    with local.session():
        entries = _exportable_entries(local, sorted(set(_all_keys(local))), left_out)
        return _write_entries(file, entries, left_out, local, progress)


def import_bundle(request: Request, file: Path, progress: Progress) -> CacheImport:
    """Copy the records of a bundle into the local store. `ok` is false if some of them are not trusted here.

    A complete local record that is trusted here stays, with two exceptions: the project's lock file refuses it and accepts
    the record of the bundle, or it is a pointer record and the bundle's pointer leads to another record.

    Raises BundleRefused if the file is not a valid bundle, or if a record in it is invalid. In the second case, the valid
    records are imported. Raises UsageError if the file cannot be read, LockFileError if the lock file cannot be read, and
    StoreUnavailable if the local store cannot be used.
    """
    lock_file = None if request.upgrade else locked.read(request.project.absolute())
    local = _open_local_store(request)
    try:
        bundle = open_bundle(str(file), lambda done, total: progress("check the bundle", done, total, "bytes"))
    except OSError as error:
        raise UsageError(f"the bundle {str(file)!r} cannot be read: {error.strerror or error}") from error
    remote = RemoteStore(bundle, "the bundle", local.trust, connections=4)
    keys = bundle.keys

    def report(fetched: Fetched) -> None:
        progress("import", fetched.finished_count, len(keys), "records")

    try:
        fetched = fetch_records(remote, keys, local, report)
        if lock_file is not None:
            _replace_refused_records(remote, local, lock_file.lock, fetched)
    finally:
        remote.close()
        bundle.close()
    fault_text = next(iter(fetched.failed.values()), None)
    if fault_text is None and fetched.missing:
        fault_text = f"the record {fetched.missing[0]} is missing in the bundle"
    if fault_text is not None:
        count = len(fetched.fetched)
        imported_text = "1 valid record was imported" if count == 1 else f"{count} valid records were imported"
        raise BundleRefused(
            f"{'not all records of the bundle are' if count else 'the bundle is not'} imported: {fault_text}",
            file=str(file),
            hint=f"{imported_text if count else 'nothing of it was used'}; export the bundle again",
        )
    return CacheImport(
        ok=not fetched.untrusted,
        file=str(file),
        records=len(fetched.fetched),
        present=len(fetched.present),
        bytes=fetched.bytes_moved,
        untrusted=[RefusedRecord(key=key, reason=why) for key, why in sorted(fetched.untrusted.items())],
    )


def _replace_refused_records(remote: RemoteStore, local: LocalStore, lock: Lock, fetched: Fetched) -> None:
    """Replace local records that the lock refuses with the bundle's records, if the lock accepts these. Changes
    `fetched`."""
    locked_keys = [key for key in fetched.present if key in lock.by_key]
    replaced = fetch_records(remote, locked_keys, local, lock_refusal=lambda key, record, _: lock.refusal(key, record))
    fetched.present = [key for key in fetched.present if key not in replaced.fetched]
    fetched.fetched += replaced.fetched
    fetched.bytes_moved += replaced.bytes_moved
    fetched.failed.update(replaced.failed)


def _open_local_store(request: Request) -> LocalStore:
    project = request.project.absolute()
    return wiring.open_local(project, wiring.trust_policy(wiring.load_configuration(project).trust))


def _all_keys(local: LocalStore) -> Iterator[str]:
    """The keys of all records in a store. A key may occur more than once."""
    for name, _ in local.entries.layout.entries("ac"):
        try:
            document = record_document(local.entries.read("ac", name) or b"")
            key = json.loads(local.entries.read("cas", document.sha256) or b"")["key"]
        except (ValueError, KeyError, TypeError, RecursionError):  # the entry is a list of chunks, or it is damaged
            continue
        if is_digest(key):
            yield key


def _exportable_entries(local: LocalStore, keys: Iterable[str], left_out: dict[str, str]) -> dict[str, ActionResult]:
    """Key → entry (a list of files), for each exportable record. For the others, adds key → reason to `left_out`."""
    entries = {}
    for key in keys:
        record = read_complete_record(local, key)
        if record is None:
            left_out[key] = "it is incomplete in the cache, or not trusted here"
            continue
        sendable = sendable_record(record, local.trust)
        if sendable is None:
            left_out[key] = ONLY_MACHINE_KEY
            continue
        entries[key] = sendable.entry({})
    return entries


def _write_entries(
    file: Path, entries: dict[str, ActionResult], left_out: dict[str, str], local: LocalStore, progress: Progress
) -> CacheExport:
    try:
        written = write_bundle(
            str(file),
            entries,
            file_reader(local),
            lambda done, total: progress("write the bundle", done, total, "bytes"),
        )
    except OSError as error:
        raise StoreError(
            f"the bundle {str(file)!r} cannot be written: {error.strerror or error}",
            hint="no file was written; choose another place, or free some space",
        ) from error
    return CacheExport(
        ok=True,
        file=str(file),
        records=written.records,
        files=written.files,
        bytes=written.size_bytes,
        left_out=[RefusedRecord(key=key, reason=why) for key, why in sorted(left_out.items())],
    )


def _limited_list(texts: list[str]) -> str:
    more = [f"and {len(texts) - _MAX_LISTED} more"] if len(texts) > _MAX_LISTED else []
    return "\n    ".join(texts[:_MAX_LISTED] + more)
