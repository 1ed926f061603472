"""Plans, reasons and the state of models as text.

A plan of a thousand engines stays readable: hits have no row, a model's steps with the same verdict, stage, reason and
targets share a row, and models with the same rows share a group. A row names its first steps without the model, such as
``engine/p0`` for the step ``vit/engine/p0``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, duration, first_names
from trtbuild.cli.terminal.reasons import short_reason, shorten
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Change
from trtbuild.driver.answers.documents import (
    Affected,
    ErrorEntry,
    ModelStatus,
    NearestRecord,
    Plan,
    Status,
    StepEntry,
    Why,
)

#: The largest number of rows of a model in a plan. If there is exactly one more row, all are shown, because the line
#: "1 more row" would not be shorter. If there are more models than this, `status` lists only those that are not up to date.
MOST_ROWS = 40

#: The largest width of a row's step names, in characters. The reasons of rows with longer names are not aligned.
MOST_STEPS = 36

#: The largest width of the names of changed parts, in characters. The values of longer names are not aligned.
MOST_PARTS = 48

#: The verdict, the steps, and the reason.
Row = tuple[str, str, str]


def plan_lines(document: Plan) -> list[str]:
    by_model: dict[str, list[StepEntry]] = defaultdict(list)
    for step in document.steps:
        if step.verdict != "hit":
            by_model[step.model].append(step)
    models_by_rows: dict[tuple[Row, ...], list[str]] = defaultdict(list)
    for model, steps in by_model.items():
        models_by_rows[tuple(_rows(model, steps))].append(model)
    lines: list[str] = []
    for rows, models in models_by_rows.items():
        lines.append(terminal.bold(first_names(models)))
        shown = rows if len(rows) <= MOST_ROWS + 1 else rows[:MOST_ROWS]
        width = min(max((len(steps) for _, steps, why in shown if why), default=0), MOST_STEPS)
        lines += [
            f"  {_verdict(verdict)}  {steps:{width}}  {terminal.dim(why)}" if why else f"  {_verdict(verdict)}  {steps}"
            for verdict, steps, why in shown
        ]
        if len(shown) < len(rows):
            lines.append(terminal.dim(f"  … and {len(rows) - len(shown):,} more rows"))
    lines += [f"{terminal.red('error')}: {_error(entry)}" for entry in document.errors]
    prefix = "" if lines else "nothing to run, "
    lines += [
        terminal.dim(f"{entry.model}: {' = '.join(entry.axes)} (the model needs equal sizes: they are one dim)")
        for entry in document.equal_axes or ()
    ]
    return [*lines, *warning_lines(document.warnings), f"plan: {prefix}{_counts(document.steps)}"]


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """A line for each different warning."""
    return [f"{terminal.yellow('warning')}: {text}" for text in dict.fromkeys(warnings)]


def _error(entry: ErrorEntry) -> str:
    hint = f"\n  → {entry.hint}" if entry.hint else ""
    return f"{f'{entry.place}: ' if entry.place else ''}{entry.text}{hint}"


def _counts(steps: Iterable[StepEntry]) -> str:
    verdicts = Counter[str](step.verdict for step in steps)
    words = {"run": "run", "unknown": "unknown until the others have run", "hit": "hit"}
    counts = ", ".join(f"{verdicts[word]:,} {text}" for word, text in words.items() if verdicts[word])
    return counts or "no steps"


def _verdict(verdict: str) -> str:
    return terminal.yellow(f"{verdict:7}") if verdict == "run" else terminal.dim(f"{verdict:7}")


def _rows(model: str, steps: Sequence[StepEntry]) -> list[Row]:
    """The rows of a model. All unknown steps share the last row.

    Steps that differ only in their target share a name. Names with the same verdict, stage, reason and targets share a
    row."""
    targets_by_step: dict[tuple[str, str, str, str], list[str]] = {}
    for step in steps:
        name = step.id.removeprefix(f"{model}/")
        target = step.target or ""
        if target and name.endswith(f"@{target}"):
            name = name[: -len(target) - 1]
        why = short_reason(step.reason) if step.verdict == "run" else step.reason.text
        targets_by_step.setdefault((step.verdict, step.stage, name, why), []).append(target)
    names_by_row: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (verdict, stage, name, why), step_targets in targets_by_step.items():
        names_by_row.setdefault((verdict, stage, why, tuple(step_targets)), []).append(name)
    rows: list[Row] = []
    unknown_steps: list[str] = []
    for (verdict, stage, why, row_targets), row_names in names_by_row.items():
        text = _steps(stage, row_names, [target for target in row_targets if target])
        if verdict == "unknown":
            unknown_steps.append(text)
        else:
            rows.append((verdict, text, why))
    if unknown_steps:  # they wait for the steps of the rows above
        rows.append(("unknown", ", ".join(unknown_steps), ""))
    return rows


def _steps(stage: str, names: Sequence[str], targets: Sequence[str]) -> str:
    text = first_names([names[0], *(name.removeprefix(f"{stage}/") for name in names[1:])], 4)
    if not targets:
        return text
    return f"{text} @{','.join(targets)}" if len(targets) <= 3 else f"{text} × {len(targets)} targets"


def why_lines(document: Why) -> list[str]:
    lines: list[str] = []
    width = min(max((len(step.id) for step in document.steps), default=0), MOST_STEPS)
    for step in document.steps:
        last, reason = step.last_run, step.reason
        name = f"{step.id:{width}}".replace(step.id, terminal.bold(step.id), 1)
        if step.verdict == "hit":
            lines.append(f"{name}  {terminal.green('hit')}: {reason.text}")
            if last:
                lines.append(f"    last ran in {duration(last.duration_s)}: {_reason_text(last.reason)}")
                lines += _changes(last.reason.changed)
        else:
            lines.append(f"{name}  {terminal.yellow(step.verdict)}: {_reason_text(reason)}")
            lines += _changes(reason.changed)
            lines += _nearest(step.nearest) if step.nearest is not None else []
    return [*lines, *warning_lines(document.warnings)]


def _nearest(nearest: NearestRecord) -> list[str]:
    maker = f" by {nearest.builder}" if nearest.builder else ""
    when = f", {nearest.finished}" if nearest.finished else ""
    differing = f"{count(len(nearest.changed), 'part')} differ{'s' if len(nearest.changed) == 1 else ''}"
    return [
        terminal.dim(f"    the nearest record in the cache was made{maker}{when}; {differing}:"),
        *_changes(nearest.changed),
    ]


def _reason_text(reason: Reason) -> str:
    """The reason as text. If parts have changed, the text is only their number, because a list of the parts follows."""
    changed = len(reason.changed)
    return f"{count(changed, 'part')} changed" if changed else reason.text


def _changes(changed: Sequence[Change]) -> list[str]:
    parts = [shorten(change.name or change.part) for change in changed]
    width = min(max(map(len, parts), default=0), MOST_PARTS)
    return [
        f"    {part:{width}}  {shorten(change.was)} → {shorten(change.now)}"
        for part, change in zip(parts, changed, strict=True)
    ]


def status_lines(document: Status) -> list[str]:
    """A line for each model, and for several models a line with the number of those that are up to date.

    If there are more than `MOST_ROWS` models, the models that are up to date have no line."""
    models = document.models
    up_to_date = sum(entry.up_to_date for entry in models)
    shown = [entry for entry in models if len(models) <= MOST_ROWS or not entry.up_to_date]
    rows = [(terminal.bold(entry.model), _state(entry)) for entry in shown]
    total = f"{up_to_date:,} of {count(len(models), 'model')} up to date"
    return [*align_rows(rows), *warning_lines(document.warnings), *([total] if len(models) > 1 else [])]


def _state(entry: ModelStatus) -> str:
    if entry.up_to_date:
        return terminal.green("up to date")
    if entry.next is None:
        return f"{terminal.yellow('built')}; its outputs are not in place: trtbuild build {entry.model}"
    name = entry.next.id.removeprefix(f"{entry.model}/")
    to_run = terminal.yellow(f"{'at least ' if entry.steps['unknown'] else ''}{entry.steps['run']} to run")
    return f"{to_run}, beginning with {name}: {short_reason(entry.next.reason)}"


def affected_lines(document: Affected) -> list[str]:
    affected = [entry for entry in document.models if entry.affected]
    rows = [(terminal.bold(entry.model), entry.text) for entry in affected]
    untracked = dict.fromkeys(name for entry in document.models for name in entry.untracked)
    note = f"git does not track {first_names(list(untracked))}: their changes are not seen"
    notes = [terminal.dim(note)] if untracked else []
    total = f"{len(affected):,} of {count(len(document.models), 'model')} affected since {document.since[:12]}"
    return [*align_rows(rows), *warning_lines(document.warnings), *notes, total]
