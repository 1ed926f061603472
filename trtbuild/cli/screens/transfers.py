"""The results and the progress of transfers between caches, as text."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trtbuild.cli.screens.plans import warning_lines
from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, first_names, size
from trtbuild.driver.cache.documents import CacheExport, CacheImport, CachePull, CachePush, MissingRecord
from trtbuild.driver.cache.transfer import Progress

#: The largest number of shown rows about records that were not transferred.
MOST_SHOWN = 20

# Seconds between two updates of the progress. On a terminal, one line is overwritten.
_TERMINAL_INTERVAL_S = 0.1
_LOG_INTERVAL_S = 10.0


def push_lines(document: CachePush) -> list[str]:
    rows = []
    for remote in document.remotes:
        sent = _amount(remote.records_sent, remote.bytes_sent)
        there = f"{_amount(remote.records_there, remote.bytes_there)} there already" if remote.records_there else ""
        rows.append(("pushed", terminal.bold(remote.name), sent, terminal.dim(there) if there else ""))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for record in document.not_sent:
        by_reason.setdefault((record.remote, record.reason), []).append(record.step)
    failed = [
        (f"  {terminal.red('not sent')}", f"{first_names(sorted(steps))} to {remote}", reason)
        for (remote, reason), steps in by_reason.items()
    ]
    missing = _missing(document.missing, "not built", "trtbuild build, then push again")
    # A warning that repeats the text of a row is left out, also if a remark in parentheses follows this text.
    row_texts = {f"{remote}: {reason}" for remote, reason in by_reason}
    warnings = [text for text in document.warnings if not row_texts & {text, text.partition(" (")[0]}]
    hint = ["→ trtbuild doctor checks the remotes; then push again: records that are there already are not sent again"]
    return [*align_rows(rows), *_first_rows(failed), *(hint if failed else []), *missing, *warning_lines(warnings)]


def pull_lines(document: CachePull) -> list[str]:
    rows = [
        ("pulled", terminal.bold(remote.name), _amount(remote.records, remote.bytes)) for remote in document.remotes
    ]
    rows.append(("here already", "", count(document.present, "record")))
    return [
        *align_rows(rows),
        *_missing(document.missing, "missing", "trtbuild build builds them here"),
        *warning_lines(document.warnings),
    ]


def export_lines(document: CacheExport) -> list[str]:
    rows = [("exported", terminal.bold(document.file), _amount(document.records, document.bytes))]
    left_out = [
        (f"  {terminal.yellow('left out')}", f"record {record.key}", record.reason) for record in document.left_out
    ]
    return [*align_rows(rows), *_first_rows(left_out), f"→ on the other machine: trtbuild cache import {document.file}"]


def import_lines(document: CacheImport) -> list[str]:
    rows = [("imported", terminal.bold(document.file), _amount(document.records, document.bytes))]
    if document.present:
        rows.append(("here already", "", count(document.present, "record")))
    untrusted = [
        (f"  {terminal.red('not trusted')}", f"record {record.key}", record.reason) for record in document.untrusted
    ]
    hint = ["→ add the signer's key to the trusted keys, or ask for a bundle with a trusted signature"]
    return [*align_rows(rows), *_first_rows(untrusted), *(hint if untrusted else [])]


def _amount(records: int, size_bytes: int) -> str:
    return f"{count(records, 'record')}, {size(size_bytes)}"


def _missing(missing: Sequence[MissingRecord], label: str, hint: str) -> list[str]:
    rows = [(f"  {terminal.red(label)}", record.step, record.reason) for record in missing]
    return [*_first_rows(rows), f"→ {hint}"] if rows else []


def _first_rows(rows: list[tuple[str, str, str]]) -> list[str]:
    lines = align_rows(rows[:MOST_SHOWN])
    return [*lines, f"  … and {len(rows) - MOST_SHOWN:,} more"] if len(rows) > MOST_SHOWN else lines


@contextlib.contextmanager
def progress(flags: dict[str, Any]) -> Iterator[Progress]:
    """Yield a function that shows the progress of a transfer on standard error, except with `--quiet`."""
    live = terminal.can_be_live(sys.stderr)
    interval_s = _TERMINAL_INTERVAL_S if live else _LOG_INTERVAL_S
    last_update, width = time.monotonic(), 0

    def report(activity: str, done: int, total: int, unit: str) -> None:
        nonlocal last_update, width
        now = time.monotonic()
        if flags.get("quiet") or now - last_update < interval_s:
            return
        last_update = now
        share = f"{100 * done // total}%" if total else ""
        amount = f"{size(done)} of {size(total)}" if unit == "bytes" else f"{done:,} of {count(total, 'record')}"
        line = f"{activity}  {amount}  {share}"
        with contextlib.suppress(OSError):
            if live:
                sys.stderr.write(f"\r{line:{width}}")
                sys.stderr.flush()
                width = len(line)
            else:
                terminal.write_message(line)

    try:
        yield report
    finally:
        if width:  # the line is removed before the result is shown
            with contextlib.suppress(OSError):
                sys.stderr.write("\r" + " " * width + "\r")
