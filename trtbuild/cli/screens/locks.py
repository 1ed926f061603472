"""The result of ``trtbuild lock`` as text: locked models, missing steps, and differences from the lock file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, few, size
from trtbuild.driver.cache.documents import LockDifference, Locked

#: The largest number of missing steps, or of differences, that are shown.
_MOST = 20

_MARKS = {"added": terminal.green("+"), "removed": terminal.red("-"), "changed": terminal.yellow("~")}
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def locked(found: Locked) -> list[str]:
    """The locked models, or the steps and differences because of which nothing was locked."""
    path, missing = found.path, found.missing
    differences = found.differences if found.existed else []
    if missing:
        shown = aligned([(f"  {step.id}", step.reason.text) for step in missing[:_MOST]])
        more = [f"  and {len(missing) - _MOST:,} more: trtbuild plan"] if len(missing) > _MOST else []
        return [
            f"{terminal.red('not locked')}: {count(len(missing), 'step')} not built yet",
            *shown,
            *more,
            *_differing(differences),
            _next(found),
        ]
    if found.check:
        if not found.ok:
            what = "out of date" if found.existed else "missing"
            return [f"{terminal.red(what)}: {path}", *_differing(differences), _next(found)]
        return [f"{terminal.green('up to date')}: {path}", *_models(found)]
    verb = "locked" if found.written else "nothing to change in"
    return [f"{terminal.green(verb)}: {path}", *_models(found), *_differing(differences)]


def _next(found: Locked) -> str:
    return f"→ {', then '.join(found.next)}"


def _models(found: Locked) -> list[str]:
    rows = [
        (
            f"  {model.model}",
            count(model.steps, "step"),
            f"{count(model.engines, 'engine')}, {size(model.engine_bytes)}",
            few(model.targets),
        )
        for model in found.models
    ]
    return aligned(rows)


def _differing(differences: Sequence[LockDifference]) -> list[str]:
    rows = []
    for entry in differences[:_MOST]:
        was, now = _short(entry.was), _short(entry.now)
        text = {"added": now, "removed": was}.get(entry.change, f"{was} → {now}")
        area = "" if entry.area in ("step", "target") else f"{entry.area} "
        rows.append((f"  {_MARKS[entry.change]} {area}{entry.name}", text))
    more = [f"  and {len(differences) - _MOST:,} more: --json has them all"] if len(differences) > _MOST else []
    return [*aligned(rows), *more]


def _short(text: str | None) -> str:
    return _DIGEST.sub(r"\1", text or "")
