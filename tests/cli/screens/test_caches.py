"""The results of ``trtbuild cache stats``, ``verify`` and ``gc`` as text."""

from __future__ import annotations

from dataclasses import replace

import click

from trtbuild.cli.screens import caches
from trtbuild.driver.cache.documents import CacheGc, CacheStats, CacheVerify, DamagedEntry

STATS = CacheStats(
    cache="/c",
    records={"trace-link": 53, "engine": 12, "trace": 3},
    blobs=103,
    chunks=1200,
    logical_bytes=834 * 2**20,
    stored_bytes=168 * 2**20,
    allocated_bytes=170 * 2**20,
    dedup_ratio=4.96,
    quarantine_entries=0,
    quarantine_bytes=0,
)


COLLECTED = CacheGc(
    cache="/c",
    dry_run=False,
    records_removed=2,
    blobs_removed=0,
    freed_bytes=8192,
    records_kept=1,
    blobs_kept=12,
    kept_bytes=9 * 2**20,
    kept_because={},
    grace_s=None,
    leftovers_removed=0,
    blobs_condemned=0,
    condemned_bytes=0,
    blobs_restored=0,
)


def unstyled(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_statistics_are_in_the_order_of_the_stages() -> None:
    assert unstyled(caches.stats_lines(STATS)) == [
        "cache         /c",
        "records       68",
        "  trace       3",
        "  engine      12",
        "  trace-link  53",
        "contents      834.0 MiB in 103 blobs",
        "stored        168.0 MiB, 5.0 × smaller; 1,200 chunks",
        "on disk       170.0 MiB",
    ]
    damaged = replace(STATS, chunks=0, dedup_ratio=1.0, quarantine_entries=2, quarantine_bytes=2048)
    assert unstyled(caches.stats_lines(damaged))[-1].startswith("quarantine    2 entries, 2.0 KiB")
    assert "stored        168.0 MiB" in unstyled(caches.stats_lines(damaged))


def test_a_verification_lists_damaged_entries() -> None:
    result = CacheVerify(ok=True, records=2, lists=0, blobs=3, bytes_read=2048, damage=[])
    assert unstyled(caches.verify_lines(result)) == ["sound: 2 records, 3 blobs, 2.0 KiB read"]
    damage = [DamagedEntry(kind="blob", name="ab12", text="it does not match its digest")]
    assert unstyled(caches.verify_lines(replace(result, damage=damage)))[:2] == [
        "damaged: 1 entry moved to the quarantine; 2 records, 3 blobs, 2.0 KiB read",
        "  blob  ab12  it does not match its digest",
    ]


def test_the_lines_of_a_collection_are_aligned() -> None:
    result = replace(
        COLLECTED,
        dry_run=True,
        records_removed=61,
        blobs_removed=126,
        freed_bytes=8178892,
        blobs_kept=58,
        kept_bytes=512,
        kept_because={"in use": 2, "pinned": 0},
    )
    assert unstyled(caches.gc_lines(result)) == [
        "would remove  61 records, 126 blobs  7.8 MiB",
        "kept          1 record, 58 blobs       512 B",
        "  2 kept: in use",
    ]


def test_a_collection_of_a_shared_directory_explains_condemned_blobs() -> None:
    result = replace(COLLECTED, leftovers_removed=1, blobs_condemned=31, condemned_bytes=6 * 2**20, blobs_restored=1)
    assert unstyled(caches.gc_lines(result)) == [
        "removed    2 records, 0 blobs, 1 leftover  8.0 KiB",
        "kept       1 record, 12 blobs              9.0 MiB",
        "condemned  31 blobs                        6.0 MiB",
        "  condemned: no record names them, or their size is wrong; the second collection from now removes them, "
        "if the time of --grace passes before each",
        "  1 blob put back: a record names it again",
    ]
