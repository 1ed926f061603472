"""The job summary of GitHub Actions: the result of a build as Markdown, in the file ``$GITHUB_STEP_SUMMARY``.

Rules
1. The summary never makes a build fail or wait. If the file cannot be written, there is no summary.
2. The summary is appended in one write, because other commands of the workflow's step write to the file, too.
3. GitHub drops a summary that is larger than 1 MiB. Therefore, long texts, tables and lists are cut. A cut table or list
   shows how many entries are missing. If the file has too little space left, only the first line is written, or nothing.
4. Names and messages come from manifests, models and servers. Characters with a meaning in Markdown or HTML are written as
   entities, so that they are shown as text.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trtbuild.cli.terminal.quantities import count, duration, size
from trtbuild.driver.answers.documents import Build, Failure, StepEntry
from trtbuild.store.layers.remote_statistics import RemoteStatistics

#: GitHub's limit minus some space for other commands that append at the same time.
LARGEST_BYTES = (1 << 20) - (16 << 10)

#: The largest numbers of models, errors and warnings that are shown.
MOST_MODELS = 200
MOST_FAILURES = 50
MOST_WARNINGS = 30

#: The largest number of characters in a line of text.
LONGEST_TEXT = 400
#: The number of lines that are shown of a long message, besides its last line.
MOST_MESSAGE_LINES = 25

#: A smaller saved time is left out of the first line, because `duration` rounds it to 0.0 s.
_LEAST_SAVED_S = 0.05

_VERDICTS = ("hit", "run", "failed", "skipped")
#: Characters with a meaning in Markdown or HTML. The dot of ``www.`` is among them: GitHub makes links of such names.
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>()#+!|&~@:$]|(?<=www)\.")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def write(environ: Mapping[str, str], document: Build | Failure) -> bool:
    """Append the summary of a build to the file, if ``GITHUB_STEP_SUMMARY`` is set (rules 1 to 3).

    Returns whether the summary, or its first line, was written completely."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    text = job_summary(document).encode("utf-8", "replace")
    try:
        # without O_NONBLOCK, opening a pipe that has no reader would wait (rule 1)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return False
            free_bytes = LARGEST_BYTES - status.st_size
            if len(text) > free_bytes:
                text = b"\n" + text.strip().partition(b"\n")[0] + b"\n"  # the first line only
            if len(text) > free_bytes:
                return False
            return os.write(descriptor, text) == len(text)
        finally:
            os.close(descriptor)
    except OSError:
        return False


def job_summary(document: Build | Failure) -> str:
    parts = [
        [f"### {_headline(document)}"],
        _models(document.steps),
        _remotes(document.remotes if isinstance(document, Build) else ()),
        _failures(document),
        _warnings(document.warnings),
    ]
    return "".join("\n" + "".join(f"{line}\n" for line in lines) for lines in parts if lines)


def _headline(document: Build | Failure) -> str:
    verdicts = Counter[str](step.verdict for step in document.steps)
    counts = ", ".join(f"{verdicts[word]:,} {word}" for word in _VERDICTS if verdicts[word])
    outcome = "done" if document.ok else "failed"
    if not counts:
        return f"trtbuild build {outcome}: nothing ran"
    saved_s = _saved_s(document.steps)
    saved = f", {duration(saved_s)} saved" if saved_s >= _LEAST_SAVED_S else ""
    return f"trtbuild build {outcome}: {counts} in {duration(document.duration_s)}{saved}"


def _models(steps: Sequence[StepEntry]) -> list[str]:
    by_model: dict[str, list[StepEntry]] = {}
    for step in steps:
        by_model.setdefault(step.model, []).append(step)
    if not by_model:
        return []
    header = ("model", "hits", "runs", "failed", "skipped", "hits from", "time saved")
    rows = [_model_row(code(name), model_steps) for name, model_steps in list(by_model.items())[:MOST_MODELS]]
    if len(by_model) > MOST_MODELS:
        rows.append((f"… and {len(by_model) - MOST_MODELS:,} more", "", "", "", "", "", ""))
    if len(by_model) > 1:
        rows.append(_model_row("**all**", steps))
    return _table(header, rows, right=(1, 2, 3, 4, 6))


def _model_row(name: str, steps: Sequence[StepEntry]) -> tuple[str, ...]:
    verdicts = Counter[str](step.verdict for step in steps)
    sources = Counter(str(step.source) for step in steps if step.verdict == "hit")
    where = ", ".join(f"{plain(source)} {number:,}" for source, number in sources.most_common())
    return (name, *(f"{verdicts[word]:,}" for word in _VERDICTS), where, duration(_saved_s(steps)))


def _saved_s(steps: Iterable[StepEntry]) -> float:
    """The seconds that hits have saved.

    Several hits with one key count once. They do not count if a step with this key ran in this build."""
    saved_by_key = {step.key: step.saved_s for step in steps if step.verdict == "hit"}
    for step in steps:
        if step.verdict == "run":
            saved_by_key.pop(step.key, None)
    return sum(saved_by_key.values())


def _remotes(reports: Iterable[RemoteStatistics]) -> list[str]:
    rows = [
        (
            code(report.name),
            f"{report.hits:,}",
            size(report.bytes_down),
            f"{report.records_sent:,}",
            size(report.bytes_up),
            plain(report.given_up or _problems(report)),
        )
        for report in reports
    ]
    header = ("remote", "records found", "down", "records sent", "up", "trouble")
    return _table(header, rows, right=(1, 2, 3, 4)) if rows else []


def _problems(report: RemoteStatistics) -> str:
    counts = (report.untrusted, "untrusted"), (report.blobs_gone, "gone"), (report.records_not_sent, "not sent")
    return ", ".join(f"{number:,} {words}" for number, words in counts if number)


def _failures(document: Build | Failure) -> list[str]:
    reasons = {step.id: step.reason.text for step in document.steps if step.verdict == "failed"}
    errors = document.errors
    if not errors:
        return []
    rows = []
    for error in errors[:MOST_FAILURES]:
        step = error.step or ""
        text = f"{error.place}: {error.text}" if error.place else error.text
        hint = f"\n→ {error.hint}" if error.hint else ""
        rows.append((code(step) if step else "", plain(reasons.get(step, "")), multiline(f"{text}{hint}")))
    if len(errors) > MOST_FAILURES:
        rows.append((f"… and {count(len(errors) - MOST_FAILURES, 'more error')}", "", ""))
    return _table(("failed step", "why it ran", "error"), rows)


def _warnings(warnings: Iterable[str]) -> list[str]:
    texts = list(dict.fromkeys(warnings))
    # The colon is an entity, as in the texts of `plain`: GitHub replaces names between colons with emoji.
    lines = [f"- warning&#58; {plain(text)}" for text in texts[:MOST_WARNINGS]]
    return lines + ([f"- … and {len(texts) - MOST_WARNINGS:,} more"] if len(texts) > MOST_WARNINGS else [])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    rule = ["--:" if column in right else "---" for column in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def plain(text: str) -> str:
    """Text for a cell of a table: escaped (rule 4), on one line, and cut to `LONGEST_TEXT`."""
    line = _CONTROL.sub(" ", _ESCAPES.sub("", str(text))).strip()
    if len(line) > LONGEST_TEXT:
        line = f"{line[: LONGEST_TEXT - 1]}…"
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", line)


def multiline(text: str) -> str:
    """A message of several lines for a cell of a table. A long message is cut to its first lines and its last line."""
    lines = text.splitlines()
    if len(lines) > MOST_MESSAGE_LINES + 2:
        lines = [*lines[:MOST_MESSAGE_LINES], "…", lines[-1]]
    return "<br>".join(filter(None, map(plain, lines)))


def code(name: str) -> str:
    """A name as inline code. An HTML element is used, because Markdown does not decode entities between backticks."""
    return f"<code>{plain(name)}</code>"
