"""The result of a verification as text: the worst error of each model, and the places of wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, duration, few
from trtbuild.core.model.verification import advice, error_text, tolerance_of, worst

Document = dict[str, Any]

_BY = {"onnxruntime": "by onnxruntime on the CPU"}


def verified(found: Document) -> list[str]:
    """One line for each model and runner; below it the results that are wrong or were not compared."""
    rows = [each for model in found["models"] for each in _model(model)]
    lines = []
    for line, (_, notes) in zip(aligned(row for row, _ in rows), rows, strict=True):
        lines += [line, *notes]
    return [*lines, _summary(found)]


def overview(found: Document) -> list[str]:
    """The line of each model and runner, without details, as a part of a build's result."""
    rows = [row for model in found["models"] for row, _ in _model(model)]
    return aligned([("verified", *row) for row in rows])


def _model(model: Document) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    name = terminal.bold(model["model"])
    if model["missing"]:
        steps = model["missing"]
        more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        hint = f"    → trtbuild build {model['model']}"
        yield (name, terminal.red("not built")), [f"    missing: {steps[0]}{more}", hint]
    elif not model["cuts"]:
        failed = model["status"] == "failed"
        word = terminal.red("failed") if failed else terminal.yellow("nothing was compared")
        yield (name, word), _not_run(model)
    for number, cut in enumerate(model["cuts"], start=1):
        row, notes = _cut(name, cut)
        yield row, [*notes, *(_not_run(model) if number == len(model["cuts"]) else [])]


def _cut(name: str, cut: Document) -> tuple[tuple[str, ...], list[str]]:
    error, tolerance = worst(cut)
    word = {"right": terminal.green("right"), "wrong": terminal.red("wrong")}.get(cut["status"])
    row = (
        name,
        word or terminal.yellow("not all compared"),
        f"worst error {error:.1e}" if cut["status"] != "wrong" else "",
        f"within {tolerance:.0e}",
        count(len(cut["partitions"]), "partition"),
        count(len(cut["points"]), "point"),
        _by(cut),
        "known" if cut["verdict"] == "hit" else "",
    )
    notes = [line for entry in _entries(cut) for line in _note(entry, cut)]
    if cut["status"] == "wrong" and cut["worst_input"]:
        notes.append(f"    worst inputs: {cut['worst_input']}")
    return row, notes


def _not_run(model: Document) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for entry in model["not_run"]:
        reasons.setdefault(entry["reason"], []).append(entry["target"])
    return [terminal.dim(f"    engines not run: {few(names)}: {reason}") for reason, names in reasons.items()]


def _by(cut: Document) -> str:
    device = cut["machine"].get("device")
    by = f"by {', '.join(cut['targets'])} on {device}" if device else _BY.get(cut["by"], str(cut["by"]))
    return by if cut.get("against", "PyTorch") == "PyTorch" else f"{by}, against {cut['against']}"


def _entries(cut: Document) -> list[Document]:
    names = ("whole", "lowered") if cut["lowered"]["points"] else ("whole",)  # a package has no lowered program
    named = [{"partition": "", "name": name, **cut[name]} for name in names]
    return [*cut["partitions"], *(named if not any(e["status"] == "wrong" for e in cut["partitions"]) else [])]


def _note(entry: Document, cut: Document) -> list[str]:
    part = entry["partition"]
    what = f"partition {terminal.bold(part)}" if part else _WHOLE[entry["name"]]
    if entry["status"] == "unchecked":
        return [f"    {terminal.yellow('not compared')}: {what}: {entry['text']}"]
    if entry["status"] != "wrong":
        return [terminal.dim(f"    {what.rstrip(',')}: {entry['text']}")] if entry["text"] else []
    lines = [f"    {what} {error_text(entry, tolerance_of(entry, cut))}"]
    return [*lines, *(f"    {line}" for line in advice(entry))]


_WHOLE = {
    "whole": "the whole model",
    "lowered": "the model in its precision, by PyTorch itself,",
}


def _summary(found: Document) -> str:
    other_errors = len(found["errors"]) - sum(
        model["status"] == "failed" for model in found["models"]
    )  # errors that belong to none of these models
    wrong = sum(not model["ok"] for model in found["models"]) + other_errors
    total = count(len(found["models"]) + other_errors, "model")
    if wrong:
        return f"{terminal.red('failed')}: {wrong:,} of {total} in {duration(found['duration_s'])}"
    return f"{terminal.green('ok')}: {total} in {duration(found['duration_s'])} (--seed {found['seed']})"


def failures(found: Document) -> list[str]:
    """The errors because of which a model was not compared."""
    lines = []
    for error in found["errors"]:
        about = f"{error['package']}: " if error.get("package") else ""
        lines.append(f"{terminal.red('error')}: {about}{error['text']}")
        lines += [f"  → {error['hint']}"] if error["hint"] else []
    return lines
