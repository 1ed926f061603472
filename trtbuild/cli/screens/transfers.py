"""What was moved between caches, for a person; and how far it is while it is moved."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, few, size
from trtbuild.driver.cache.transfer import Told

Document = dict[str, Any]

#: Of what could not be moved, this many are shown.
MOST_SHOWN = 20

# Seconds between two lines on a terminal, where the last one is written over, and in a log.
_LIVE_S = 0.1
_LOG_S = 10.0


def pushed(found: Document) -> list[str]:
    """What each remote got, and what it did not."""
    rows = []
    for remote in found["remotes"]:
        there = f"{count(remote['records_there'], 'record')}, {size(remote['bytes_there'])} there already"
        told = terminal.dim(there) if remote["records_there"] else ""
        rows.append(("pushed", terminal.bold(remote["name"]), _moved(remote, "_sent"), told))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for each in found["not_sent"]:
        by_reason.setdefault((each["remote"], each["reason"]), []).append(each["step"])
    failed = [
        (f"  {terminal.red('not sent')}", f"{few(sorted(steps))} to {remote}", reason)
        for (remote, reason), steps in by_reason.items()
    ]
    missing = _missing(found, "not built", "trtbuild build, then push again")
    said = {f"{remote}: {reason}" for remote, reason in by_reason}
    warnings = [text for text in found["warnings"] if text.partition(" (")[0] not in said and text not in said]
    hint = ["→ trtbuild doctor looks at the remotes; then push again: what is there already is not sent again"]
    return [*aligned(rows), *_shown(failed), *(hint if failed else []), *missing, *_warned({"warnings": warnings})]


def pulled(found: Document) -> list[str]:
    """What came from where, and what no remote has."""
    rows = [("pulled", terminal.bold(remote["name"]), _moved(remote)) for remote in found["remotes"]]
    rows.append(("here already", "", count(found["present"], "record")))
    return [*aligned(rows), *_missing(found, "not there", "trtbuild build makes it here"), *_warned(found)]


def exported(found: Document) -> list[str]:
    """The file that was written."""
    rows = [("exported", terminal.bold(found["file"]), f"{count(found['records'], 'record')}, {size(found['bytes'])}")]
    left_out = [
        (f"  {terminal.yellow('left out')}", f"record {each['key']}", each["reason"]) for each in found["left_out"]
    ]
    return [*aligned(rows), *_shown(left_out), f"→ over there: trtbuild cache import {found['file']}"]


def imported(found: Document) -> list[str]:
    """What came out of a bundle, and what did not count."""
    rows = [("imported", terminal.bold(found["file"]), f"{count(found['records'], 'record')}, {size(found['bytes'])}")]
    if found["present"]:
        rows.append(("here already", "", count(found["present"], "record")))
    refused = [
        (f"  {terminal.red('not trusted')}", f"record {each['key']}", each["reason"]) for each in found["untrusted"]
    ]
    hint = ["→ trust whoever signed it, or ask for a bundle that is signed by whom you trust"] if refused else []
    return [*aligned(rows), *_shown(refused), *hint]


def _moved(remote: Document, suffix: str = "") -> str:
    return f"{count(remote[f'records{suffix}'], 'record')}, {size(remote[f'bytes{suffix}'])}"


def _missing(found: Document, what: str, hint: str) -> list[str]:
    rows = [(f"  {terminal.red(what)}", each["step"], each["reason"]) for each in found["missing"]]
    return [*_shown(rows), f"→ {hint}"] if rows else []


def _warned(found: Document) -> list[str]:
    return [f"{terminal.yellow('warning')}: {text}" for text in dict.fromkeys(found["warnings"])]


def _shown(rows: list[tuple[str, str, str]]) -> list[str]:
    lines = aligned(rows[:MOST_SHOWN])
    return [*lines, f"  … and {len(rows) - MOST_SHOWN:,} more"] if len(rows) > MOST_SHOWN else lines


@contextlib.contextmanager
def progress(flags: dict[str, Any]) -> Iterator[Told]:
    """Shows on standard error how far a transfer is: a line that is written over, or now and then one in a log."""
    live = terminal.can_be_live(sys.stderr)
    every = _LIVE_S if live else _LOG_S
    last, width = time.monotonic(), 0

    def told(what: str, done: int, total: int, unit: str) -> None:
        nonlocal last, width
        now = time.monotonic()
        if flags.get("quiet") or now - last < every:
            return
        last = now
        share = f"{100 * done // total}%" if total else ""
        far = f"{size(done)} of {size(total)}" if unit == "bytes" else f"{done:,} of {count(total, 'record')}"
        line = f"{what}  {far}  {share}"
        with contextlib.suppress(OSError):
            if live:
                sys.stderr.write(f"\r{line:{width}}")
                sys.stderr.flush()
                width = len(line)
            else:
                terminal.say(line)

    try:
        yield told
    finally:
        if width:  # nothing of it is left when the result is shown
            with contextlib.suppress(OSError):
                sys.stderr.write("\r" + " " * width + "\r")
