"""The result of ``trtbuild verify`` as text: the worst error of each model, and the places of wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, duration, first_names
from trtbuild.core.model.verification_messages import advice_lines, error_text, worst_error
from trtbuild.core.model.verified import CutEntry, ModelEntry, PackageEntry, PartitionEntry, WholeEntry
from trtbuild.driver.answers.documents import Verification

#: The largest number of outputs whose errors against the float model are listed.
MOST_OUTPUTS = 4

#: The name of a runner that needs no GPU (`CutEntry.by`) → its text.
_RUNNER_TEXTS = {"onnxruntime": "by onnxruntime on the CPU"}


class _Result(NamedTuple):
    """The cells of a line about a model, and the lines below this line."""

    cells: tuple[str, ...]
    notes: list[str]


def verify_lines(document: Verification) -> list[str]:
    """The lines of each model, each with its notes, and the summary line."""
    results = [result for model in document.models for result in _results(model)]
    lines = []
    for line, result in zip(align_rows(result.cells for result in results), results, strict=True):
        lines += [line, *result.notes]
    return [*lines, _summary(document)]


def overview(document: Verification) -> list[str]:
    """The lines of each model without notes, for the result of a build."""
    return align_rows(("verified", *result.cells) for model in document.models for result in _results(model))


def _results(model: ModelEntry | PackageEntry) -> list[_Result]:
    """A result for each comparison: by onnxruntime for each cut, and by the engines of each target.

    A cut is one way to divide a model into partitions. Without a comparison, a single result says that the
    model is not built, has failed, or was not compared. The last result also has the notes that belong to no comparison.
    """
    name = terminal.bold(model.model)
    if model.missing:
        steps = model.missing
        more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        hint = f"    → trtbuild build {model.model}"
        results = [_Result((name, terminal.red("not built")), [f"    missing: {steps[0]}{more}", hint])]
    elif not model.cuts:
        failed = model.status == "failed"
        word = terminal.red("failed") if failed else terminal.yellow("nothing was compared")
        results = [_Result((name, word), [])]
    else:
        results = [_cut_result(name, cut) for cut in model.cuts]
    results[-1].notes.extend([*_too_large(model), *_not_run(model)])
    return results


def _cut_result(name: str, cut: CutEntry) -> _Result:
    error, tolerance = worst_error(cut)
    word = {"right": terminal.green("right"), "wrong": terminal.red("wrong")}.get(cut.status)
    cells = (
        name,
        word or terminal.yellow("not all compared"),
        f"worst error {error:.1e}" if cut.status != "wrong" else "",
        f"within {tolerance:.0e}",
        count(len(cut.partitions), "partition"),
        count(len(cut.points), "point"),
        _runner_text(cut),
        "from the cache" if cut.verdict == "hit" else "",
    )
    notes = [*_notes(cut), *_float_error(cut)]
    if cut.status == "wrong" and cut.worst_input:
        notes.append(f"    worst inputs: {cut.worst_input}")
    return _Result(cells, notes)


def _float_error(cut: CutEntry) -> Iterator[str]:
    """The errors of a quantized model against the float model: ``output 0: 1.2e-02 at most, 2.1e-03 on average``."""
    if cut.float_error is None:
        return
    outputs = sorted(cut.float_error.outputs, key=lambda entry: -entry.largest)
    texts = [
        f"output {entry.output}: {entry.largest:.1e} at most, {entry.mean:.1e} on average"
        for entry in outputs[:MOST_OUTPUTS]
    ]
    texts += [f"and {len(outputs) - MOST_OUTPUTS} more outputs"] if len(outputs) > MOST_OUTPUTS else []
    texts += [cut.float_error.unknown] if cut.float_error.unknown else []
    yield from (terminal.dim(f"    error against the float model: {text}") for text in texts)


def _too_large(model: ModelEntry | PackageEntry) -> list[str]:
    return [f"    {terminal.red('too large')}: {model.exceeds}"] if model.exceeds else []


def _not_run(model: ModelEntry | PackageEntry) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for entry in model.not_run:
        reasons.setdefault(entry.reason, []).append(entry.target)
    return [terminal.dim(f"    engines not run: {first_names(names)}: {reason}") for reason, names in reasons.items()]


def _runner_text(cut: CutEntry) -> str:
    device = cut.machine.get("device")
    by = f"by {', '.join(cut.targets)} on {device}" if device else _RUNNER_TEXTS.get(cut.by, cut.by)
    return by if cut.against == "PyTorch" else f"{by}, against {cut.against}"


def _notes(cut: CutEntry) -> Iterator[str]:
    """Notes on the entries that are wrong, were not compared, or have a text.

    If a partition is wrong, only the partitions have notes.
    """
    for entry in cut.partitions:
        yield from _note(entry, f"partition {terminal.bold(entry.partition)}")
    if any(entry.status == "wrong" for entry in cut.partitions):
        return
    yield from _note(cut.whole, "the whole model")
    if cut.lowered.points:  # a package has no lowered program
        yield from _note(cut.lowered, "PyTorch's own result in the model's precision")


def _note(entry: WholeEntry | PartitionEntry, subject: str) -> list[str]:
    if entry.status == "unchecked":
        return [f"    {terminal.yellow('not compared')}: {subject}: {entry.text}"]
    if entry.status != "wrong":
        return [terminal.dim(f"    {subject}: {entry.text}")] if entry.text else []
    return [f"    {subject} {error_text(entry)}", *(f"    {line}" for line in advice_lines(entry))]


def _summary(document: Verification) -> str:
    # Each failed model of the document has one error. The other errors belong to models that are not in the document.
    other_errors = len(document.errors) - sum(model.status == "failed" for model in document.models)
    failed = sum(not model.ok for model in document.models) + other_errors
    total = count(len(document.models) + other_errors, "model")
    if failed:
        return f"{terminal.red('failed')}: {failed:,} of {total} in {duration(document.duration_s)}"
    unchecked = sum(model.status == "unchecked" for model in document.models)
    note = f", {terminal.yellow(f'{unchecked:,} unchecked')}," if unchecked else ""
    return f"{terminal.green('ok')}: {total}{note} in {duration(document.duration_s)} (--seed {document.seed})"


def failures(document: Verification) -> list[str]:
    """The errors that prevented the comparison of a model."""
    lines = []
    for error in document.errors:
        about = f"{error.package}: " if error.package else ""
        lines.append(f"{terminal.red('error')}: {about}{error.text}")
        lines += [f"  → {error.hint}"] if error.hint else []
    return lines
