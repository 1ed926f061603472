"""The results of the `cache` commands as text."""

from __future__ import annotations

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, duration, size
from trtbuild.core.planning.graph import STAGES
from trtbuild.driver.cache.documents import CacheGc, CacheStats, CacheVerify, NewKey


def stats(found: CacheStats) -> list[str]:
    """The number of records of each stage, the sizes, and the space that chunking saves."""
    records = found.records
    stages = [*(stage for stage in STAGES if stage in records), *(name for name in records if name not in STAGES)]
    rows = [("cache", found.cache)]
    rows.append(("records", f"{sum(records.values()):,}"))
    rows += [(f"  {stage}", f"{records[stage]:,}") for stage in stages]
    rows.append(("contents", f"{size(found.logical_bytes)} in {count(found.blobs, 'blob')}"))
    saved = f", {found.dedup_ratio:.1f} × smaller" if found.dedup_ratio > 1 else ""
    chunks = f"; {count(found.chunks, 'chunk')}" if found.chunks else ""
    rows.append(("stored", f"{size(found.stored_bytes)}{saved}{chunks}"))
    rows.append(("on disk", size(found.allocated_bytes)))
    quarantine = found.quarantine_entries
    if quarantine:
        rows.append(
            (
                terminal.yellow("quarantine"),
                f"{count(quarantine, 'entry')}, {size(found.quarantine_bytes)}: "
                "damaged, never used; trtbuild cache gc removes those older than a week",
            )
        )
    return aligned(rows)


def verified(found: CacheVerify) -> list[str]:
    """The amount of data that was read, and each damaged entry."""
    read = f"{count(found.records, 'record')}, {count(found.blobs, 'blob')}, {size(found.bytes_read)} read"
    damage = found.damage
    if not damage:
        return [f"{terminal.green('sound')}: {read}"]
    rows = [(f"  {entry.kind}", entry.name, entry.text) for entry in damage]
    return [
        f"{terminal.red('damaged')}: {count(len(damage), 'entry')} moved to the quarantine; {read}",
        *aligned(rows),
        "→ the next build makes these results again",
    ]


def collected(found: CacheGc) -> list[str]:
    """The removed and the kept entries, and the reasons why entries were kept."""
    verb = "would remove" if found.dry_run else "removed"
    leftovers = found.leftovers_removed
    rows = [
        (
            verb,
            f"{count(found.records_removed, 'record')}, {count(found.blobs_removed, 'blob')}"
            + (f", {count(leftovers, 'leftover')}" if leftovers else ""),
            size(found.freed_bytes),
        ),
        (
            "kept",
            f"{count(found.records_kept, 'record')}, {count(found.blobs_kept, 'blob')}",
            size(found.kept_bytes),
        ),
    ]
    if found.blobs_condemned:
        rows.append(("condemned", count(found.blobs_condemned, "blob"), size(found.condemned_bytes)))
    because = [
        f"  {number:,} kept: {_why_kept(reason, found)}" for reason, number in found.kept_because.items() if number
    ]
    if found.blobs_condemned:
        because.append(
            "  condemned: no record names them; they are removed by later collections, at least an hour apart"
        )
    if found.blobs_restored:
        it = "it" if found.blobs_restored == 1 else "them"
        because.append(f"  {count(found.blobs_restored, 'blob')} put back: a record names {it} again")
    return [*aligned(rows, right=(2,)), *because]


def _why_kept(reason: str, found: CacheGc) -> str:
    if reason == "in use" and found.grace_s:
        return f"used within the last {duration(found.grace_s)} (--grace)"
    return {"pinned": "a lock file names them"}.get(reason, reason)


def key_made(found: NewKey) -> list[str]:
    """The public key, and how to configure both keys."""
    return [
        found.public,
        *aligned([("private key", found.file), ("fingerprint", found.fingerprint)]),
        *aligned(
            [
                ("→ to sign:", f'export TRTBUILD_SIGNING_KEY_FILE="{found.file}"'),
                ("→ to trust it:", f'export TRTBUILD_TRUSTED_KEYS="{found.public};domains={found.name}"'),
            ]
        ),
        "→ or set signing_key_file and keys in [trust] of config.toml",
    ]
