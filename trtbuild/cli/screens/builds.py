"""The result of a build as text: written outputs, errors, and a summary line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from trtbuild.cli.screens import verifications
from trtbuild.cli.screens.plans import warning_lines
from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, duration, first_names, size
from trtbuild.driver.answers.documents import Build, BuiltOutput, ErrorEntry, StepEntry
from trtbuild.store.layers.remote_statistics import RemoteStatistics

#: The largest number of outputs that are shown. If there is exactly one more output, all are shown, because a line "1 more"
#: would save no space.
MOST_OUTPUTS = 20


def build_lines(document: Build) -> list[str]:
    """The lines for standard output. For a failed build, they lack the summary line, which `failures` returns."""
    written = [entry for entry in document.outputs if entry.written]
    shown = written[:MOST_OUTPUTS] if len(written) > MOST_OUTPUTS + 1 else written
    lines = _outputs(shown, document.steps)
    if len(shown) < len(written):
        lines.append(terminal.dim(f"… and {len(written) - len(shown):,} more outputs"))
    if document.verification is not None:
        lines += verifications.overview(document.verification)
    lines += align_rows(_remote(report) for report in document.remotes if _was_used(report))
    lines += warning_lines(document.warnings)
    return [*lines, _summary(document)] if document.ok else lines


def _outputs(written: list[BuiltOutput], steps: Iterable[StepEntry]) -> list[str]:
    engine_sizes: dict[str, dict[str, int]] = defaultdict(dict)  # model → engine step → bytes of the engine
    for step in steps:
        if step.stage == "engine" and "plan" in step.outputs:
            engine_sizes[step.model][step.id] = step.outputs["plan"].size
    rows = []
    for entry in written:
        sizes = engine_sizes[entry.model] if entry.kind == "package" else {}
        about = f"{count(len(sizes), 'engine')}, {size(sum(sizes.values()))}" if sizes else ""
        rows.append((entry.kind, terminal.bold(entry.path), terminal.dim(about) if about else ""))
    return align_rows(rows)


def _was_used(report: RemoteStatistics) -> bool:
    return bool(report.hits or report.records_sent or report.bytes_down or report.bytes_up)


def _remote(report: RemoteStatistics) -> tuple[str, str, str]:
    """``remote  team  12 records, 34.1 MiB down; 3 records, 1.2 MiB up``."""
    received = f"{count(report.hits, 'record')}, {size(report.bytes_down)} down"
    sent = f"{count(report.records_sent, 'record')}, {size(report.bytes_up)} up"
    return (
        "remote",
        terminal.bold(report.name),
        terminal.dim(f"{received}; {sent}" if report.records_sent else received),
    )


def _summary(document: Build) -> str:
    verdicts = Counter[str](step.verdict for step in document.steps)
    counts = ", ".join(f"{verdicts[word]:,} {word}" for word in ("run", "hit", "failed", "skipped") if verdicts[word])
    if not document.ok:
        more = "; --keep-going builds everything that does not need the failed steps" if document.not_begun else ""
        return f"{terminal.red('failed')}: {counts or 'nothing ran'} in {duration(document.duration_s)}{more}"
    if not verdicts["run"] and not any(entry.written for entry in document.outputs):
        # The duration has three decimals, because such builds are short. `trtbuild.null_build` prints this line again with
        # its own duration.
        return f"{terminal.green('up to date')}: {counts or 'nothing to do'} in {document.duration_s:.3f} s"
    return f"{terminal.green('done')}: {counts} in {duration(document.duration_s)}"


def failures(document: Build) -> list[str]:
    """The lines for standard error: each error, with all its steps, and the summary line of a failed build."""
    steps_by_message: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in document.errors:
        steps_by_message[_message(entry), entry.log or ""].append(entry.step or "")
    lines = []
    for (message, log), steps in steps_by_message.items():
        step_names = first_names([step for step in steps if step])
        head = f"{terminal.red('FAIL')} {step_names}" if step_names else terminal.red("error")
        lines += [head, *(f"  {line}" for line in message.splitlines())]
        if log and log not in message:
            lines.append(f"  {terminal.dim(f'log: {log}')}")
    return lines if document.ok else [*lines, _summary(document)]


def _message(entry: ErrorEntry) -> str:
    message = f"{entry.place}: {entry.text}" if entry.place else entry.text
    return f"{message}\n→ {entry.hint}" if entry.hint else message
