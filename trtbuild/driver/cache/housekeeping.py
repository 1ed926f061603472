"""The `cache` commands: statistics, verification, collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.ports import Store
from trtbuild.driver.cache import build_history, locking
from trtbuild.driver.cache.documents import CacheGc, CacheStats, CacheVerify, DamagedEntry
from trtbuild.driver.configuration.quantities import age_s, size_bytes
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import RemoteFault, StoreUnavailable, UsageError
from trtbuild.store.collection import check
from trtbuild.store.collection.collect import collect as run_collection
from trtbuild.store.collection.retention import CollectReport
from trtbuild.store.collection.shared_directory import DEFAULT_GRACE_S, MIN_GRACE_S, collect_directory
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings


def stats(request: Request) -> CacheStats:
    """The numbers and sizes of the entries in the project's cache, and the history of the project's builds."""
    store = _open_local_store(request)
    statistics = check.stats(store)
    return CacheStats(
        cache=str(wiring.store_root(request.project.absolute())),
        records=dict(statistics.records),
        blobs=statistics.blobs,
        chunks=statistics.chunks,
        logical_bytes=statistics.logical_bytes,
        stored_bytes=statistics.stored_bytes,
        allocated_bytes=statistics.allocated_bytes,
        dedup_ratio=round(statistics.dedup_ratio, 2),
        quarantine_entries=statistics.quarantine_entries,
        quarantine_bytes=statistics.quarantine_bytes,
        history=build_history.summarize(build_history.read_builds(request.project)),
    )


def verify(request: Request) -> CacheVerify:
    """Check all entries of the project's cache, and move damaged entries to the quarantine."""
    result = check.verify(_open_local_store(request))
    return CacheVerify(
        ok=not result.damage,
        records=result.records,
        lists=result.lists,
        blobs=result.blobs,
        bytes_read=result.bytes_read,
        damage=[DamagedEntry(kind=entry.kind, name=entry.name, text=entry.text) for entry in result.damage],
    )


def collect(
    request: Request,
    max_size: str | None,
    max_age: str | None,
    *,
    dry_run: bool,
    directory: str | None = None,
    grace: str | None = None,
    locks: Sequence[str] = (),
) -> CacheGc:
    """Remove old entries from the project's cache, or from `directory`: a shared directory or another local store.

    Records in the project's lock file or in the lock files `locks` are kept. Without `max_size`, the configured size
    limit applies to the project's cache. `grace`: how long a shared directory keeps files that no record names yet.
    Raises LockFileError, ConfigurationError, StoreUnavailable, and UsageError for an invalid argument.
    """
    project = request.project.absolute()
    root = wiring.store_root(project) if directory is None else Path(directory).expanduser().absolute()
    limits: dict[str, Any] = {
        "max_size": None if max_size is None else size_bytes(max_size),
        "max_age_s": None if max_age is None else age_s(max_age),
        "dry_run": dry_run,
    }
    if directory is None and max_size is None:
        limits["max_size"] = wiring.load_configuration(project).cache_max_size
    shared_grace_s: float | None = None
    if directory is None or (root / "format").exists():
        if grace is not None:
            raise UsageError(
                f"{root} is a local store, which has no grace period", hint="use --grace for shared directories only"
            )
        collected = run_collection(LocalStore(root), pinned=_pinned_in_local(project, locks, root), **limits)
    else:
        shared_grace_s = DEFAULT_GRACE_S if grace is None else age_s(grace)
        collected = _collect_shared(root, project, shared_grace_s, locks, limits)
    return CacheGc(
        cache=str(root),
        dry_run=dry_run,
        records_removed=len(collected.records_removed),
        blobs_removed=collected.blobs_removed,
        freed_bytes=collected.freed.allocated,
        records_kept=collected.records_kept,
        blobs_kept=collected.blobs_kept,
        kept_bytes=collected.kept.allocated,
        kept_because=dict(collected.kept_because),
        grace_s=None if shared_grace_s is None else round(shared_grace_s),
        leftovers_removed=collected.leftovers_removed,
        blobs_condemned=collected.condemned,
        condemned_bytes=collected.condemned_size.allocated,
        blobs_restored=collected.restored,
    )


def _collect_shared(
    root: Path, project: Path, grace_s: float, locks: Sequence[str], limits: dict[str, Any]
) -> CollectReport:
    if grace_s < MIN_GRACE_S:
        least = f"{MIN_GRACE_S / 60:g}m"
        raise UsageError(
            f"a grace period of less than {least} is too short: a build that writes files now may need more time to write"
            " the records that name them",
            hint=f"leave --grace out, which means 1h, or write {least} or more",
        )
    shared = RemoteStore(DirectoryTransport(RemoteSettings("dir", root.as_uri())), str(root))
    try:
        # A build finds a locked trace through link records (`core.recipes.chain`), so these are kept, too. Some links
        # are readable in the local store only, if the links in the shared directory belong to another trust domain.
        local_root = wiring.store_root(project)
        pinned = _all_pinned_keys(project, locks, shared) | _pinned_in_local(project, locks, local_root)
    except RemoteFault as fault:
        raise StoreUnavailable(fault.text, hint=fault.hint) from fault
    finally:
        shared.close()
    return collect_directory(str(root), grace_s=grace_s, pinned=pinned, **limits)


def _pinned_in_local(project: Path, locks: Sequence[str], root: Path) -> frozenset[str]:
    """The keys that are pinned in the local store at `root`.

    If this machine checks signatures, a link that it does not trust may have the same key as its own link, and lead to
    other links. So both are pinned: the links under these keys, and those that this machine trusts."""
    pinned = _all_pinned_keys(project, locks, LocalStore(root))
    if pinned:  # without a lock file, a wrong configuration must not prevent a collection
        trust = wiring.trust_policy(wiring.load_configuration(project).trust)
        if trust.checks_signatures:
            pinned |= _all_pinned_keys(project, locks, LocalStore(root, trust))
    return pinned


def _all_pinned_keys(project: Path, locks: Sequence[str], store: Store) -> frozenset[str]:
    """The keys of the records that the project's lock file and the lock files `locks` protect from collection."""
    keys = locking.pinned_keys(project, store=store)
    return keys.union(*(locking.pinned_keys(project, Path(path), store=store) for path in locks))


def _open_local_store(request: Request) -> LocalStore:
    return wiring.open_local(request.project.absolute())
