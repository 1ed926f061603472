"""What the `cache` commands found, for a person."""

from __future__ import annotations

from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, duration, size
from trtbuild.core.planning.graph import STAGES

Document = dict[str, Any]


def stats(found: Document) -> list[str]:
    """How much there is, by stage, and what chunking saves."""
    records: dict[str, int] = found["records"]
    stages = [*(stage for stage in STAGES if stage in records), *(name for name in records if name not in STAGES)]
    rows = [("cache", found["cache"])]
    rows.append(("records", f"{sum(records.values()):,}"))
    rows += [(f"  {stage}", f"{records[stage]:,}") for stage in stages]
    rows.append(("contents", f"{size(found['logical_bytes'])} in {count(found['blobs'], 'blob')}"))
    saved = f", {found['dedup_ratio']:.1f} × smaller" if found["dedup_ratio"] > 1 else ""
    chunks = f"; {count(found['chunks'], 'chunk')}" if found["chunks"] else ""
    rows.append(("stored", f"{size(found['stored_bytes'])}{saved}{chunks}"))
    rows.append(("on disk", size(found["allocated_bytes"])))
    quarantine = found["quarantine_entries"]
    if quarantine:
        rows.append(
            (
                terminal.yellow("quarantine"),
                f"{count(quarantine, 'entry')}, {size(found['quarantine_bytes'])}: "
                "damaged, never used; trtbuild cache gc removes what is older than a week",
            )
        )
    return aligned(rows)


def verified(found: Document) -> list[str]:
    """What was read, and each damaged entry."""
    read = f"{count(found['records'], 'record')}, {count(found['blobs'], 'blob')}, {size(found['bytes_read'])} read"
    damage = found["damage"]
    if not damage:
        return [f"{terminal.green('sound')}: {read}"]
    rows = [(f"  {entry['kind']}", entry["name"], entry["text"]) for entry in damage]
    return [
        f"{terminal.red('damaged')}: {count(len(damage), 'entry')} put in quarantine; {read}",
        *aligned(rows),
        "→ nothing is lost that cannot be made again: the next build does so",
    ]


def collected(found: Document) -> list[str]:
    """What was removed, what was kept, and why that could not be removed."""
    verb = "would remove" if found["dry_run"] else "removed"
    leftovers = found["leftovers_removed"]
    rows = [
        (
            verb,
            f"{count(found['records_removed'], 'record')}, {count(found['blobs_removed'], 'blob')}"
            + (f", {count(leftovers, 'leftover')}" if leftovers else ""),
            size(found["freed_bytes"]),
        ),
        (
            "kept",
            f"{count(found['records_kept'], 'record')}, {count(found['blobs_kept'], 'blob')}",
            size(found["kept_bytes"]),
        ),
    ]
    if found.get("blobs_condemned"):
        rows.append(("condemned", count(found["blobs_condemned"], "blob"), size(found["condemned_bytes"])))
    because = [
        f"  {number:,} kept: {_why_kept(reason, found)}" for reason, number in found["kept_because"].items() if number
    ]
    if found.get("blobs_condemned"):
        because.append("  condemned: no record names them; the next collections remove them, an hour apart or more")
    if found.get("blobs_restored"):
        it = "it" if found["blobs_restored"] == 1 else "them"
        because.append(f"  {count(found['blobs_restored'], 'blob')} put back: a record names {it} again")
    return [*aligned(rows, right=(2,)), *because]


def _why_kept(reason: str, found: Document) -> str:
    if reason == "in use" and found.get("grace_s"):
        return f"used within the last {duration(found['grace_s'])} (--grace)"
    return {"pinned": "a lock file names them"}.get(reason, reason)


def key_made(found: Document) -> list[str]:
    """The public key, ready to be configured, and what to do with it."""
    return [
        found["public"],
        *aligned([("private key", found["file"]), ("fingerprint", found["fingerprint"])]),
        *aligned(
            [
                ("→ who signs:", f'export TRTBUILD_SIGNING_KEY_FILE="{found["file"]}"'),
                ("→ who trusts it:", f'export TRTBUILD_TRUSTED_KEYS="{found["public"]};domains={found["name"]}"'),
            ]
        ),
        "→ or signing_key_file and keys of [trust] in config.toml",
    ]
