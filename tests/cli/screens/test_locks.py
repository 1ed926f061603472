"""The result of ``trtbuild lock`` as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from trtbuild.cli.screens import locks
from trtbuild.core.planning.graph import Reason
from trtbuild.driver.cache.documents import LockDifference, Locked, LockedSummary, MissingStep

LOCKED = Locked(
    ok=True,
    duration_s=0.1,
    path="trtbuild.lock",
    existed=True,
    check=False,
    written=True,
    models=[LockedSummary(model="vit", steps=9, engines=2, engine_bytes=3 << 20, targets=["ada", "blackwell"])],
    missing=[],
    differences=[],
    next=[],
    errors=[],
    warnings=[],
)
CHANGED = LockDifference(area="step", name="vit/trace", change="changed", was="key " + "a" * 64, now="key " + "b" * 64)
NEWER = LockDifference(area="version", name="vit: torch", change="changed", was="2.12.0", now="2.13.0")


def lines_of(**changes: Any) -> list[str]:
    return [click.unstyle(line) for line in locks.lock_lines(replace(LOCKED, **changes))]


def test_a_lock_lists_its_models_and_its_changes() -> None:
    model = "  vit  9 steps  2 engines, 3.0 MiB  ada, blackwell"
    assert lines_of() == ["locked: trtbuild.lock", model]
    assert lines_of(differences=[NEWER, CHANGED]) == [
        "locked: trtbuild.lock",
        model,
        "  ~ version vit: torch  2.12.0 → 2.13.0",
        "  ~ vit/trace           key aaaaaaaaaaaa → key bbbbbbbbbbbb",
    ]
    assert lines_of(existed=False, differences=[replace(CHANGED, change="added", was=None)]) == [
        "locked: trtbuild.lock",
        model,
    ]
    assert lines_of(written=False)[0] == "unchanged: trtbuild.lock"


def test_a_check_reports_up_to_date_out_of_date_or_missing() -> None:
    assert lines_of(check=True, written=False)[0] == "up to date: trtbuild.lock"
    out_of_date: dict[str, Any] = {"check": True, "ok": False, "written": False, "next": ["trtbuild lock"]}
    removed = replace(CHANGED, change="removed", now=None)
    assert lines_of(**out_of_date, differences=[removed]) == [
        "out of date: trtbuild.lock",
        "  - vit/trace  key aaaaaaaaaaaa",
        "→ trtbuild lock",
    ]
    assert lines_of(**out_of_date, existed=False)[0] == "missing: trtbuild.lock"


def test_missing_steps_are_listed_with_reasons_up_to_twenty() -> None:
    step = MissingStep(id="vit/trace", key=None, verdict="run", reason=Reason("changed", "changed: file:vit.py"))
    result = {"ok": False, "written": False, "next": ["trtbuild build", "trtbuild lock"], "models": []}
    assert lines_of(**result, missing=[step]) == [
        "not locked: 1 step not built yet",
        "  vit/trace  changed: file:vit.py",
        "→ trtbuild build, then trtbuild lock",
    ]
    lines = lines_of(**result, missing=[step] * 25, differences=[NEWER] * 21)
    assert "  and 5 more: trtbuild plan" in lines
    assert "  and 1 more: --json has them all" in lines


def test_warnings_follow_the_result_and_equal_warnings_are_shown_once() -> None:
    warnings = ["remote team is down", "remote team is down"]
    assert lines_of(warnings=warnings) == [*lines_of(), "warning: remote team is down"]
    missing = MissingStep(id="vit/trace", key=None, verdict="run", reason=Reason("new", "never built"))
    assert lines_of(ok=False, missing=[missing], next=["trtbuild build"], warnings=warnings)[-1] == (
        "warning: remote team is down"
    )
