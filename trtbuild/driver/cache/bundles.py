"""Bundles: what a cache holds in one file, and back. Nothing is built. The rules of `transfer` hold here too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from trtbuild.core.recipes.record import is_digest
from trtbuild.driver.cache.selection import select
from trtbuild.driver.cache.transfer import OWN_ONLY, Document, Told, complete, not_there
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BundleRefused, StoreError, UsageError
from trtbuild.store.bundle import open_bundle, write_bundle
from trtbuild.store.layers.fetching import Brought, bring
from trtbuild.store.layers.sendable import for_others, held, reading
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.trust.action_result import ActionResult, record_document

# Of what an error is about, this many are named.
_MOST_NAMED = 20


def export_models(request: Request, file: Path, told: Told) -> Document:
    """``trtbuild.cache-export/1``: all records of the models that were asked for, from here and from remotes, as one file.

    Raises UsageError when the file was forgotten, StoreError when something is not there that a build would need, or the
    file cannot be written.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        if not request.models and str(file) in workspace.models:
            raise UsageError(
                f"{str(file)!r} is a model, and stands where the file belongs",
                hint=f"trtbuild cache export {file}.bundle {file}",
            )
        with store.only_reading(), store.session():
            selection = select(workspace)
            lacking, _ = complete(store, selection.keys, told)
            missing = [f"{each['step']}: {each['reason']}" for each in not_there(selection, lacking)]
            if missing:
                raise StoreError(
                    f"a build would need what is not there:\n    {_listed(missing)}",
                    hint="trtbuild build, then export again",
                )
            left_out: dict[str, str] = {}
            entries = _entries(store.local, selection.keys, left_out)
            named = [f"{selection.named(key)}: {why}" for key, why in left_out.items() if key not in selection.packed]
            if named:
                raise StoreError(f"not everything can be exported:\n    {_listed(named)}")
            return _export(file, entries, {}, store.local, told)
    finally:
        store.close()


def export_all(request: Request, file: Path, told: Told) -> Document:
    """``trtbuild.cache-export/1``: all records of the local store that count here and are whole.

    Raises StoreError when the file cannot be written.
    """
    local = _local(request)
    left_out: dict[str, str] = {}
    with local.session():
        entries = _entries(local, sorted(set(_all_keys(local))), left_out)
        return _export(file, entries, left_out, local, told)


def import_bundle(request: Request, file: Path, told: Told) -> Document:
    """``trtbuild.cache-import/1``: the records of a bundle, into the local store. `ok`: all of them count here.

    Raises BundleRefused for what is no sound bundle, UsageError when there is no such file, StoreUnavailable.
    """
    local = _local(request)
    try:
        bundle = open_bundle(str(file), lambda done, total: told("check the bundle", done, total, "bytes"))
    except OSError as error:
        raise UsageError(f"the bundle {str(file)!r} cannot be read: {error.strerror or error}") from error
    remote = RemoteStore(bundle, "the bundle", local.trust, connections=4)
    keys = bundle.keys

    def heard(brought: Brought) -> None:
        told("import", brought.done, len(keys), "records")

    try:
        brought = bring(remote, keys, local, heard)
    finally:
        remote.close()
        bundle.close()
    wrong = next(iter(brought.failed.values()), None)
    if wrong is None and brought.missing:
        wrong = f"{brought.missing[0]} is not in it any more"
    if wrong is not None:
        hint = f"{len(brought.came)} records that were sound are imported; export it again"
        raise BundleRefused(f"the bundle is not imported: {wrong}", file=str(file), hint=hint)
    return {
        "schema": "trtbuild.cache-import/1",
        "ok": not brought.untrusted,
        "file": str(file),
        "records": len(brought.came),
        "present": len(brought.present),
        "bytes": brought.bytes_moved,
        "untrusted": [{"key": key, "reason": why} for key, why in sorted(brought.untrusted.items())],
    }


def _local(request: Request) -> LocalStore:
    project = request.project.absolute()
    return wiring.open_local(project, wiring.trust_in(wiring.configuration(project).trust))


def _all_keys(local: LocalStore) -> Iterator[str]:
    """The keys of all records that there are entries of."""
    for name, _ in local.entries.layout.entries("ac"):
        try:
            document = record_document(local.entries.read("ac", name) or b"")
            key = json.loads(local.entries.read("cas", document.sha256) or b"")["key"]
        except (ValueError, KeyError, TypeError, RecursionError):  # a list of chunks, or damaged
            continue
        if is_digest(key):
            yield key


def _entries(local: LocalStore, keys: Iterable[str], left_out: dict[str, str]) -> dict[str, ActionResult]:
    """The entry of each record as others may have it. `left_out`: those that they may not, and why."""
    entries = {}
    for key in keys:
        found = held(local, key)
        if found is None:
            left_out[key] = "it is not whole in the cache, or does not count here"
            continue
        found = for_others(found, local.trust)
        if found is None:
            left_out[key] = OWN_ONLY
            continue
        entries[key] = found.entry({})
    return entries


def _export(
    file: Path, entries: dict[str, ActionResult], left_out: dict[str, str], local: LocalStore, told: Told
) -> Document:
    try:
        written = write_bundle(
            str(file), entries, reading(local), lambda done, total: told("write the bundle", done, total, "bytes")
        )
    except OSError as error:
        raise StoreError(
            f"the bundle {str(file)!r} cannot be written: {error.strerror or error}",
            hint="nothing was written; choose another place, or free some space",
        ) from error
    return {
        "schema": "trtbuild.cache-export/1",
        "ok": True,
        "file": str(file),
        "records": written.records,
        "files": written.files,
        "bytes": written.size_bytes,
        "left_out": [{"key": key, "reason": why} for key, why in sorted(left_out.items())],
    }


def _listed(names: list[str]) -> str:
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return "\n    ".join(names[:_MOST_NAMED] + more)
