"""The `cache` commands: statistics, verification, collection."""

from __future__ import annotations

import re
from typing import Any

from trtbuild.driver import wiring
from trtbuild.driver.workspace import Request
from trtbuild.errors import UsageError
from trtbuild.store import check
from trtbuild.store.collect import collect as run_collection
from trtbuild.store.local import LocalStore

Document = dict[str, Any]

_SIZES = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_AGES = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 7 * 86400}


def stats(request: Request) -> Document:
    """``trtbuild.cache-stats/1``. Sizes are in bytes."""
    store = _open(request)
    found = check.stats(store)
    return {
        "schema": "trtbuild.cache-stats/1",
        "cache": str(wiring.store_root(request.project.absolute())),
        "records": dict(found.records),
        "blobs": found.blobs,
        "chunks": found.chunks,
        "logical_bytes": found.logical_bytes,
        "stored_bytes": found.stored_bytes,
        "allocated_bytes": found.allocated_bytes,
        "dedup_ratio": round(found.dedup_ratio, 2),
        "quarantine_entries": found.quarantine_entries,
        "quarantine_bytes": found.quarantine_bytes,
    }


def verify(request: Request) -> Document:
    """``trtbuild.cache-verify/1``: `ok` is false when something was wrong; it is in quarantine then."""
    found = check.verify(_open(request))
    return {
        "schema": "trtbuild.cache-verify/1",
        "ok": not found.damage,
        "records": found.records,
        "lists": found.lists,
        "blobs": found.blobs,
        "bytes_read": found.bytes_read,
        "damage": [{"kind": entry.kind, "name": entry.name, "text": entry.text} for entry in found.damage],
    }


def collect(request: Request, max_size: str | None, max_age: str | None, *, dry_run: bool) -> Document:
    """``trtbuild.cache-gc/1``. Raises UsageError for sizes and ages that cannot be read."""
    found = run_collection(
        _open(request),
        max_size=None if max_size is None else size_bytes(max_size),
        max_age_s=None if max_age is None else age_s(max_age),
        dry_run=dry_run,
    )
    return {
        "schema": "trtbuild.cache-gc/1",
        "dry_run": dry_run,
        "records_removed": len(found.records_removed),
        "blobs_removed": found.blobs_removed,
        "freed_bytes": found.freed.allocated,
        "records_kept": found.records_kept,
        "blobs_kept": found.blobs_kept,
        "kept_bytes": found.kept.allocated,
        "kept_because": dict(found.kept_because),
        "leftovers_removed": found.leftovers_removed,
    }


def size_bytes(text: str) -> int:
    """``50GiB`` → bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _SIZES:
        raise UsageError(f"{text!r} is no size", hint="write a number and a unit: 50GiB, 800MiB, 20GB")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def age_s(text: str) -> float:
    """``30d`` → seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z])", text.strip())
    if match is None or match[2].upper() not in _AGES:
        raise UsageError(f"{text!r} is no age", hint="write a number and a unit: 30d, 12h, 90m")
    return float(match[1]) * _AGES[match[2].upper()]


def _open(request: Request) -> LocalStore:
    return wiring.open_store(wiring.store_root(request.project.absolute()))
