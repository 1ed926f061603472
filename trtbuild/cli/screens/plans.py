"""Plans, reasons and the state of models, for a person.

A plan of a thousand engines stays readable: steps of one model that would run for one reason are one row, and models
that have the same rows are one group. Step ids are spelled so that `MODEL/` before a row's first words is what
`trtbuild why` takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, duration, few
from trtbuild.cli.terminal.reasons import brief_of, shortened

Document = dict[str, Any]

#: Rows of one model that are shown; of more than that the rest is counted.
MOST_ROWS = 40

#: Columns for the steps of a row: reasons line up behind them, but for longer ones.
MOST_STEPS = 36

#: Columns for the names of changed parts.
MOST_PARTS = 48

Row = tuple[str, str, str]


def planned(found: Document) -> list[str]:
    """A plan: what would run, and why; hits are counted."""
    by_model: dict[str, list[Document]] = defaultdict(list)
    for step in found["steps"]:
        if step["verdict"] != "hit":
            by_model[step["model"]].append(step)
    alike: dict[tuple[Row, ...], list[str]] = defaultdict(list)
    for model, steps in by_model.items():
        alike[tuple(_rows(model, steps))].append(model)
    lines: list[str] = []
    for rows, models in alike.items():
        lines.append(terminal.bold(few(models)))
        shown = rows if len(rows) <= MOST_ROWS + 1 else rows[:MOST_ROWS]
        width = min(max((len(steps) for _, steps, why in shown if why), default=0), MOST_STEPS)
        lines += [
            f"  {_verdict(verdict)}  {steps:{width}}  {terminal.dim(why)}" if why else f"  {_verdict(verdict)}  {steps}"
            for verdict, steps, why in shown
        ]
        if len(shown) < len(rows):
            lines.append(terminal.dim(f"  … and {len(rows) - len(shown):,} more rows"))
    lines += [f"{terminal.red('error')}: {_error(entry)}" for entry in found["errors"]]
    todo = "" if lines else "nothing to run, "
    return [*lines, *warned(found), f"plan: {todo}{_counts(found['steps'])}"]


def warned(found: Document) -> list[str]:
    """Such as that a remote could not be asked, which may be why something would run."""
    return [f"{terminal.yellow('warning')}: {text}" for text in dict.fromkeys(found.get("warnings", ()))]


def _error(entry: Document) -> str:
    place = ":".join(str(entry[part]) for part in ("file", "line", "column") if entry.get(part) is not None)
    hint = f"\n  → {entry['hint']}" if entry.get("hint") else ""
    return f"{f'{place}: ' if place else ''}{entry['text']}{hint}"


def _counts(steps: Iterable[Document]) -> str:
    verdicts = Counter(step["verdict"] for step in steps)
    words = {"run": "run", "unknown": "unknown until those have run", "hit": "hit"}
    told = ", ".join(f"{verdicts[word]:,} {text}" for word, text in words.items() if verdicts[word])
    return told or "no steps"


def _verdict(verdict: str) -> str:
    return terminal.yellow(f"{verdict:7}") if verdict == "run" else terminal.dim(f"{verdict:7}")


def _rows(model: str, steps: Sequence[Document]) -> list[Row]:
    """Steps of one model: first those with one name for several targets together, then those with one reason."""
    targets: dict[tuple[str, str, str, str], list[str]] = {}
    for step in steps:
        name = step["id"].removeprefix(f"{model}/")
        target = step["target"] or ""
        if target and name.endswith(f"@{target}"):
            name = name[: -len(target) - 1]
        why = _reason(
            step["reason"] if step["verdict"] == "run" else {**step["reason"], "code": "", "changed": []}, model
        )
        targets.setdefault((step["verdict"], step["stage"], name, why), []).append(target)
    names: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (verdict, stage, name, why), places in targets.items():
        names.setdefault((verdict, stage, why, tuple(places)), []).append(name)
    rows: list[Row] = []
    waiting: list[str] = []
    for (verdict, stage, why, where), parts in names.items():
        text = _steps(stage, parts, [target for target in where if target])
        if verdict == "unknown":
            waiting.append(text)
        else:
            rows.append((verdict, text, why))
    if waiting:  # for the row above
        rows.append(("unknown", ", ".join(waiting), ""))
    return rows


def _steps(stage: str, names: Sequence[str], targets: Sequence[str]) -> str:
    what = few([names[0], *(name.removeprefix(f"{stage}/") for name in names[1:])], 4)
    if not targets:
        return what
    return f"{what} @{','.join(targets)}" if len(targets) <= 3 else f"{what} × {len(targets)} targets"


def _reason(reason: Document, model: str) -> str:
    return brief_of(reason).replace(f"{model}/", "")


def why(found: Document) -> list[str]:
    """Reasons, with every part that changed."""
    lines: list[str] = []
    steps = found["steps"]
    width = min(max((len(step["id"]) for step in steps), default=0), MOST_STEPS)
    for step in steps:
        last, reason = step["last_run"], step["reason"]
        name = f"{step['id']:{width}}".replace(step["id"], terminal.bold(step["id"]), 1)
        if step["verdict"] == "hit":
            lines.append(f"{name}  {terminal.green('hit')}: {reason['text']}")
            if last:
                lines.append(f"    last ran in {duration(last['duration_s'])}: {_since(last['reason'])}")
                lines += _changes(last["reason"]["changed"])
        else:
            lines.append(f"{name}  {terminal.yellow(step['verdict'])}: {_since(reason)}")
            lines += _changes(reason["changed"])
    return [*lines, *warned(found)]


def _since(reason: Document) -> str:
    """The reason, without the names of what changed where they follow."""
    changed = len(reason["changed"])
    return f"{count(changed, 'part')} changed" if changed else str(reason["text"])


def _changes(changed: Sequence[Document]) -> list[str]:
    parts = [shortened(change.get("name") or change["part"]) for change in changed]
    width = min(max(map(len, parts), default=0), MOST_PARTS)
    return [
        f"    {part:{width}}  {shortened(change['was'])} → {shortened(change['now'])}"
        for part, change in zip(parts, changed, strict=True)
    ]


def status(found: Document) -> list[str]:
    """One line for each model, and how many are up to date. Of many models only those that are not."""
    models = found["models"]
    current = sum(entry["up_to_date"] for entry in models)
    shown = [entry for entry in models if len(models) <= MOST_ROWS or not entry["up_to_date"]]
    rows = [(terminal.bold(entry["model"]), _state(entry)) for entry in shown]
    whole = f"{current:,} of {count(len(models), 'model')} up to date"
    return [*aligned(rows), *warned(found), *([whole] if len(models) > 1 else [])]


def _state(entry: Document) -> str:
    if entry["up_to_date"]:
        return terminal.green("up to date")
    if entry["next"] is None:
        return f"{terminal.yellow('built')}; its outputs are not in place: trtbuild build {entry['model']}"
    steps = entry["steps"]
    name = entry["next"]["id"].removeprefix(f"{entry['model']}/")
    to_run = terminal.yellow(f"{'at least ' if steps['unknown'] else ''}{steps['run']} to run")
    return f"{to_run}, first {name}: {_reason(entry['next']['reason'], entry['model'])}"
