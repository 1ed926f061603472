"""The results of the `cache` commands as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, duration, size
from trtbuild.core.planning.graph import STAGES

if TYPE_CHECKING:  # every command imports this module, but only the commands of `cache` make these documents
    from trtbuild.driver.cache.documents import CacheGc, CacheHistory, CacheStats, CacheVerify, NewKey


def stats_lines(document: CacheStats) -> list[str]:
    records = document.records
    stages = [*(stage for stage in STAGES if stage in records), *(name for name in records if name not in STAGES)]
    rows = [("cache", document.cache)]
    rows.append(("records", f"{sum(records.values()):,}"))
    rows += [(f"  {stage}", f"{records[stage]:,}") for stage in stages]
    rows.append(("contents", f"{size(document.logical_bytes)} in {count(document.blobs, 'blob')}"))
    saved = f", {document.dedup_ratio:.1f} × smaller" if document.dedup_ratio > 1 else ""
    chunks = f"; {count(document.chunks, 'chunk')}" if document.chunks else ""
    rows.append(("stored", f"{size(document.stored_bytes)}{saved}{chunks}"))
    rows.append(("on disk", size(document.allocated_bytes)))
    quarantine = document.quarantine_entries
    if quarantine:
        rows.append(
            (
                terminal.yellow("quarantine"),
                f"{count(quarantine, 'entry')}, {size(document.quarantine_bytes)}: "
                "damaged, never used; trtbuild cache gc removes those older than a week",
            )
        )
    return [*align_rows(rows), *(_history(document.history) if document.history is not None else [])]


def _history(history: CacheHistory) -> list[str]:
    summary = f"{_rate(history.hit_rate)} of {count(history.hits + history.misses, 'step')} were hits"
    lines = [
        "",
        f"{terminal.bold('history')}  {count(history.builds, 'build')} since {history.since}: {summary}, "
        f"{duration(history.saved_s)} saved, {duration(history.built_s)} built",
    ]
    header = ("  day", "builds", "hits", "saved", "built", "  reasons of misses")
    rows = [
        (
            f"  {day.day}",
            f"{day.builds:,}",
            _rate(day.hit_rate),
            duration(day.saved_s),
            duration(day.built_s),
            "  " + ", ".join(f"{code} {number:,}" for code, number in day.reasons.items()),
        )
        for day in history.days
    ]
    return [*lines, *align_rows([header, *rows], right=(1, 2, 3, 4))]


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.0%}"


def verify_lines(document: CacheVerify) -> list[str]:
    read = f"{count(document.records, 'record')}, {count(document.blobs, 'blob')}, {size(document.bytes_read)} read"
    damage = document.damage
    if not damage:
        return [f"{terminal.green('sound')}: {read}"]
    rows = [(f"  {entry.kind}", entry.name, entry.text) for entry in damage]
    return [
        f"{terminal.red('damaged')}: {count(len(damage), 'entry')} moved to the quarantine; {read}",
        *align_rows(rows),
        "→ the next build makes these results again",
    ]


def gc_lines(document: CacheGc) -> list[str]:
    verb = "would remove" if document.dry_run else "removed"
    leftovers = document.leftovers_removed  # files of ended processes, and old entries of the quarantine
    rows = [
        (
            verb,
            f"{count(document.records_removed, 'record')}, {count(document.blobs_removed, 'blob')}"
            + (f", {count(leftovers, 'leftover')}" if leftovers else ""),
            size(document.freed_bytes),
        ),
        (
            "kept",
            f"{count(document.records_kept, 'record')}, {count(document.blobs_kept, 'blob')}",
            size(document.kept_bytes),
        ),
    ]
    if document.blobs_condemned:
        rows.append(("condemned", count(document.blobs_condemned, "blob"), size(document.condemned_bytes)))
    explanations = [
        f"  {number:,} kept: {_why_kept(reason, document)}"
        for reason, number in document.kept_because.items()
        if number
    ]
    if document.blobs_condemned:
        explanations.append(
            "  condemned: no record names them, or their size is wrong; the second collection from now removes them, "
            "if the time of --grace passes before each"
        )
    if document.blobs_restored:
        it = "it" if document.blobs_restored == 1 else "them"
        explanations.append(f"  {count(document.blobs_restored, 'blob')} put back: a record names {it} again")
    return [*align_rows(rows, right=(2,)), *explanations]


def _why_kept(reason: str, document: CacheGc) -> str:
    if reason == "in use" and document.grace_s:
        return f"used within the last {duration(document.grace_s)} (--grace)"
    return {"pinned": "a lock file names them"}.get(reason, reason)


def keygen_lines(document: NewKey) -> list[str]:
    return [
        document.public,
        *align_rows([("private key", document.file), ("fingerprint", document.fingerprint)]),
        *align_rows(
            [
                ("→ to sign:", f'export TRTBUILD_SIGNING_KEY_FILE="{document.file}"'),
                ("→ to trust it:", f'export TRTBUILD_TRUSTED_KEYS="{document.public};domains={document.name}"'),
            ]
        ),
        "→ or set signing_key_file and keys in [trust] of config.toml",
    ]
