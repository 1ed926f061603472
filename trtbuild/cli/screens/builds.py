"""The end of a build, for a person: what was written, what failed and where, and how it came out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from trtbuild.cli.screens import verifications
from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, duration, few, size

Document = dict[str, Any]

#: Written outputs that are listed; of more than that, some are, and the rest is counted.
MOST_OUTPUTS = 20


def built(found: Document) -> list[str]:
    """Standard output's part: outputs, warnings, and how it came out unless that is an error."""
    written = [entry for entry in found["outputs"] if entry.get("written", True)]
    lines = _outputs(written[:MOST_OUTPUTS] if len(written) > MOST_OUTPUTS + 1 else written, found["steps"])
    if len(written) > MOST_OUTPUTS + 1:
        lines.append(terminal.dim(f"… and {len(written) - MOST_OUTPUTS:,} more outputs"))
    if found.get("verification") is not None:
        lines += verifications.overview(found["verification"])
    lines += aligned(_remote(report) for report in found.get("remotes", ()) if _was_used(report))
    lines += [f"{terminal.yellow('warning')}: {text}" for text in dict.fromkeys(found["warnings"])]
    return [*lines, _verdict(found)] if found["ok"] else lines


def _outputs(written: list[Document], steps: Iterable[Document]) -> list[str]:
    plans: dict[str, dict[str, int]] = defaultdict(dict)
    for step in steps:
        if step["stage"] == "engine" and "plan" in step["outputs"]:
            plans[step["model"]][step["id"]] = step["outputs"]["plan"]["size"]
    rows = []
    for entry in written:
        engines = plans[entry["model"]] if entry["kind"] == "package" else {}
        about = f"{count(len(engines), 'engine')}, {size(sum(engines.values()))}" if engines else ""
        rows.append((entry["kind"], terminal.bold(entry["path"]), terminal.dim(about) if about else ""))
    return aligned(rows)


def _was_used(report: Document) -> bool:
    return bool(report["hits"] or report["records_sent"] or report.get("bytes_down") or report.get("bytes_up"))


def _remote(report: Document) -> tuple[str, str, str]:
    """``remote  team  12 records, 34.1 MB down; 3 records, 1.2 MB up``."""
    came = f"{count(report['hits'], 'record')}, {size(report.get('bytes_down', 0))} down"
    sent = f"{count(report['records_sent'], 'record')}, {size(report.get('bytes_up', 0))} up"
    return "remote", terminal.bold(report["name"]), terminal.dim(f"{came}; {sent}" if report["records_sent"] else came)


def _verdict(found: Document) -> str:
    verdicts = Counter(step["verdict"] for step in found["steps"])
    told = ", ".join(f"{verdicts[word]:,} {word}" for word in ("run", "hit", "failed", "skipped") if verdicts[word])
    if not found["ok"]:
        more = "; --keep-going builds what does not need what failed" if found.get("not_begun") else ""
        return f"{terminal.red('failed')}: {told or 'nothing ran'} in {duration(found['duration_s'])}{more}"
    if not verdicts["run"] and not any(entry.get("written") for entry in found["outputs"]):
        # in ms: it is what the null build is about; `trtbuild.null_build` puts its own time in this place
        return f"{terminal.green('up to date')}: {told or 'nothing to do'} in {found['duration_s']:.3f} s"
    return f"{terminal.green('done')}: {told} in {duration(found['duration_s'])}"


def failures(found: Document) -> list[str]:
    """Standard error's part: every error in full, those with one text together. Nothing when all went well."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in found["errors"]:
        alike[_message(entry), str(entry.get("log") or "")].append(str(entry.get("step") or ""))
    lines = []
    for (message, log), steps in alike.items():
        named = few([step for step in steps if step])
        head = f"{terminal.red('FAIL')} {named}" if named else terminal.red("error")
        lines += [head, *(f"  {line}" for line in message.splitlines())]
        if log and log not in message:
            lines.append(f"  {terminal.dim(f'log: {log}')}")
    return lines if found["ok"] else [*lines, _verdict(found)]


def _message(entry: Document) -> str:
    place = ":".join(str(entry[part]) for part in ("file", "line", "column") if entry.get(part) is not None)
    message = f"{place}: {entry['text']}" if place else str(entry["text"])
    return f"{message}\n→ {entry['hint']}" if entry.get("hint") else message
