"""The differences between a build and the build before it."""

from __future__ import annotations

from typing import Literal

from trtbuild.driver.reports.documents import ChangedStep, Comparison, StepRow
from trtbuild.driver.reports.replay import ReplayedBuild


def compare(before: ReplayedBuild, now: ReplayedBuild) -> Comparison:
    """The steps with another key, verdict or size than in the build before, and the steps that only one build has.

    Steps with equal keys that did not fail (`change` is ``same``) are at the end."""
    steps, unchanged = [], 0
    for id in dict.fromkeys((*now.steps, *before.steps)):
        old, new = before.steps.get(id), now.steps.get(id)
        if old is not None and new is not None and _facts(old) == _facts(new):
            unchanged += 1
            continue
        steps.append(
            ChangedStep(
                id=id,
                change=_change(old, new),
                verdict_before=old.verdict if old is not None else None,
                verdict_now=new.verdict if new is not None else None,
                seconds_before=_seconds(old),
                seconds_now=_seconds(new),
                bytes_before=old.output_bytes if old is not None else None,
                bytes_now=new.output_bytes if new is not None else None,
                reason=new.reason.text if new is not None else "only the build before had this step",
            )
        )
    return Comparison(
        started=before.started,
        status=before.status,
        duration_before_s=before.last_s,
        duration_now_s=now.last_s,
        steps=sorted(steps, key=lambda step: step.change == "same"),
        unchanged=unchanged,
    )


def _change(old: StepRow | None, new: StepRow | None) -> Literal["new", "removed", "changed", "failed", "same"]:
    if old is None or new is None:
        return "new" if old is None else "removed"
    if "failed" in (old.verdict, new.verdict):
        return "failed"
    return "changed" if old.key != new.key else "same"


def _facts(row: StepRow) -> tuple[object, ...]:
    return row.verdict, row.key, row.output_bytes


def _seconds(row: StepRow | None) -> float | None:
    return row.duration_s if row is not None else None
