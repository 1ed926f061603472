"""The table of models × targets: one row with totals for each model and target."""

from __future__ import annotations

from collections.abc import Iterable

from trtbuild.driver.reports.documents import RowVerdict, StepRow, TargetRow

#: The verdict of a row is the first of these verdicts that one of its engines has.
_ORDER: tuple[RowVerdict, ...] = ("failed", "running", "skipped", "run", "hit")


def target_rows(steps: Iterable[StepRow]) -> list[TargetRow]:
    """One row for each model and target with engines, in the order of the steps."""
    groups: dict[tuple[str, str], list[StepRow]] = {}
    for step in steps:
        if step.stage == "engine" and step.target is not None:
            groups.setdefault((step.model, step.target), []).append(step)
    return [_row(model, target, engines) for (model, target), engines in groups.items()]


def _row(model: str, target: str, engines: list[StepRow]) -> TargetRow:
    verdicts = {engine.verdict for engine in engines}
    return TargetRow(
        model=model,
        target=target,
        engines=len(engines),
        runs=sum(engine.verdict == "run" for engine in engines),
        output_bytes=sum(engine.output_bytes for engine in engines),
        duration_s=round(sum(engine.duration_s for engine in engines), 3),
        saved_s=round(sum(engine.saved_s for engine in engines), 3),
        verdict=next(verdict for verdict in _ORDER if verdict in verdicts),
        sources=_distinct(engine.source for engine in engines),
        builders=_distinct(engine.builder for engine in engines),
        signers=_distinct(engine.signer for engine in engines),
    )


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})
