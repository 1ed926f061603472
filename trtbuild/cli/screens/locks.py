"""The result of ``trtbuild lock`` as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtbuild.cli.screens.plans import warning_lines
from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, first_names, size
from trtbuild.driver.cache.documents import LockDifference, Locked

#: The largest number of missing steps, or of differences, that are shown.
_MOST = 20

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def lock_lines(document: Locked) -> list[str]:
    return [*_result_lines(document), *warning_lines(document.warnings)]


def _result_lines(document: Locked) -> list[str]:
    path, missing = document.path, document.missing
    differences = document.differences if document.existed else []
    if missing:
        shown = align_rows([(f"  {step.id}", step.reason.text) for step in missing[:_MOST]])
        more = [f"  and {len(missing) - _MOST:,} more: trtbuild plan"] if len(missing) > _MOST else []
        return [
            f"{terminal.red('not locked')}: {count(len(missing), 'step')} not built yet",
            *shown,
            *more,
            *_difference_lines(differences),
            _next_commands(document),
        ]
    if document.check:
        if not document.ok:
            state = "out of date" if document.existed else "missing"
            return [f"{terminal.red(state)}: {path}", *_difference_lines(differences), _next_commands(document)]
        return [f"{terminal.green('up to date')}: {path}", *_models(document)]
    state = "locked" if document.written else "unchanged"
    return [f"{terminal.green(state)}: {path}", *_models(document), *_difference_lines(differences)]


def _next_commands(document: Locked) -> str:
    return f"→ {', then '.join(document.next)}"


def _models(document: Locked) -> list[str]:
    rows = [
        (
            f"  {model.model}",
            count(model.steps, "step"),
            f"{count(model.engines, 'engine')}, {size(model.engine_bytes)}",
            first_names(model.targets),
        )
        for model in document.models
    ]
    return align_rows(rows)


def _difference_lines(differences: Sequence[LockDifference]) -> list[str]:
    rows = []
    for entry in differences[:_MOST]:
        was, now = _short(entry.was), _short(entry.now)
        text = {"added": now, "removed": was}.get(entry.change, f"{was} → {now}")
        area = "" if entry.area in ("step", "target") else f"{entry.area} "
        rows.append((f"  {terminal.CHANGE_MARKS[entry.change]} {area}{entry.name}", text))
    more = [f"  and {len(differences) - _MOST:,} more: --json has them all"] if len(differences) > _MOST else []
    return [*align_rows(rows), *more]


def _short(text: str | None) -> str:
    """`text` with 12 characters of each digest."""
    return _DIGEST.sub(r"\1", text or "")
