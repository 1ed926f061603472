"""What a person sees. Results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from trtbuild.core.graph import Step
from trtbuild.driver import report
from trtbuild.driver.executor import Watcher
from trtbuild.driver.steps import Ran
from trtbuild.errors import TrtbuildError

Document = dict[str, Any]
Flags = dict[str, Any]


def document(flags: Flags, found: Document, for_people: Callable[[Document], list[str]]) -> None:
    """A command's result: JSON when asked for, else lines."""
    if flags.get("as_json"):
        click.echo(json.dumps(found))
        return
    if not flags.get("quiet"):
        for line in for_people(found):
            click.echo(line)


def error(problem: TrtbuildError, *, as_json: bool, command: str) -> None:
    """An error that ended a command."""
    if as_json:
        click.echo(json.dumps(report.failure_document(f"trtbuild.{command}/1", problem)))
    click.echo(f"{_red('error')}: {problem}", err=True)


def usage_error(problem: click.ClickException, *, as_json: bool) -> None:
    """A command line that click refused."""
    if as_json:
        error(TrtbuildError(problem.format_message()), as_json=True, command="build")
    else:
        problem.show()


def interrupted(*, as_json: bool) -> None:
    """Ctrl-C or SIGTERM."""
    click.echo("interrupted: what was finished is in the cache", err=True)


class Progress(Watcher):
    """A line for each step that starts to run in earnest, and one when it is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def started(self, step: Step) -> None:
        self._since[step.id] = time.monotonic()
        self._say(f"{_dim('run ')} {step.id}  {_dim(step.reason.text)}")

    def finished(self, step: Step, ran: Ran) -> None:
        word = "done" if ran.source == "built" else "got "
        self._say(f"{_green(word)} {step.id}  {ran.duration_s:.1f} s")

    def failed(self, step: Step, error: TrtbuildError) -> None:
        self._say(f"{_red('FAIL')} {step.id}\n{_indented(str(error))}")

    def _say(self, text: str) -> None:
        with self._lock:
            click.echo(text, err=True)


def progress(flags: Flags) -> Watcher:
    """What is shown while a build runs."""
    return Watcher() if flags.get("quiet") else Progress()


def built(found: Document) -> list[str]:
    """The summary of a build."""
    lines = [f"{entry['kind']:8} {entry['path']}" for entry in found["outputs"]]
    verdicts = Counter(step["verdict"] for step in found["steps"])
    counts = ", ".join(f"{verdicts[word]} {word}" for word in ("run", "hit", "failed", "skipped") if verdicts[word])
    lines += [f"warning: {text}" for text in found["warnings"]]
    end = "up to date" if found["ok"] and not verdicts["run"] else ("done" if found["ok"] else "failed")
    return [*lines, f"{end}: {counts or 'nothing to do'} in {found['duration_s']:.1f} s"]


def planned(found: Document) -> list[str]:
    """A plan: what would run, and why; hits are counted."""
    steps = found["steps"]
    width = max((len(step["id"]) for step in steps), default=0)
    lines = [
        f"{step['verdict']:8} {step['id']:{width}}  {step['reason']['text']}"
        for step in steps
        if step["verdict"] != "hit"
    ]
    verdicts = Counter(step["verdict"] for step in steps)
    counts = ", ".join(f"{verdicts[word]} {word}" for word in ("run", "unknown", "hit") if verdicts[word])
    lines += [f"error: {entry['text']}\n  → {entry['hint']}" for entry in found["errors"]]
    return [*lines, f"plan: {counts}"]


def why(found: Document) -> list[str]:
    """Reasons, with every part that changed."""
    lines = []
    for step in found["steps"]:
        lines.append(f"{step['id']}: {step['verdict']}: {step['reason']['text']}")
        lines += _changes(step["reason"]["changed"])
        last = step["last_run"]
        if last and step["verdict"] == "hit":
            lines.append(f"    last run ({last['duration_s']} s): {last['reason']['text']}")
            lines += _changes(last["reason"]["changed"])
    return lines


def _changes(changed: list[Document]) -> list[str]:
    return [f"    {change['part']}: {_short(change['was'])} → {_short(change['now'])}" for change in changed]


def _short(text: str) -> str:
    return text if len(text) <= 70 else f"{text[:32]}…{text[-32:]}"


def graph_as(form: str) -> Callable[[Document], list[str]]:
    """The writer for a form of graph."""
    return {"text": _graph_text, "dot": _graph_dot, "mermaid": _graph_mermaid}.get(form, _graph_text)


def _graph_text(found: Document) -> list[str]:
    before: dict[str, list[str]] = {}
    for source, target in found["edges"]:
        before.setdefault(target, []).append(source)
    return [
        node["id"] + (f"  ← {', '.join(before[node['id']])}" if node["id"] in before else "") for node in found["nodes"]
    ]


def _graph_dot(found: Document) -> list[str]:
    nodes = [f"  {json.dumps(node['id'])} [shape=box];" for node in found["nodes"]]
    edges = [f"  {json.dumps(source)} -> {json.dumps(target)};" for source, target in found["edges"]]
    return ["digraph trtbuild {", "  rankdir=LR;", *nodes, *edges, "}"]


def _graph_mermaid(found: Document) -> list[str]:
    names = {node["id"]: f"n{number}" for number, node in enumerate(found["nodes"])}
    nodes = [f'  {names[node["id"]]}["{node["id"]}"]' for node in found["nodes"]]
    edges = [f"  {names[source]} --> {names[target]}" for source, target in found["edges"] if source in names]
    return ["flowchart LR", *nodes, *edges]


def status(found: Document) -> list[str]:
    """One line for each model."""
    width = max((len(entry["model"]) for entry in found["models"]), default=0)
    lines = []
    for entry in found["models"]:
        if entry["up_to_date"]:
            state = "up to date"
        elif entry["next"] is None:
            state = "built; its outputs are not in place"
        else:
            state = f"{entry['steps']['run']} to run: {entry['next']['id']}: {entry['next']['reason']['text']}"
        lines.append(f"{entry['model']:{width}}  {state}")
    return lines


def inspected(found: Document) -> list[str]:
    """A package, as a person wants to know it."""
    index = found["index"]
    dims = [dim["name"] for dim in index["dims"]]
    lines = [f"package {found['path']}: model {index['model']}, {index['precision']}"]
    for kind in ("inputs", "outputs"):
        lines.append(f"{kind}:")
        lines += [f"  {entry['name']}: {entry['dtype']}{_shape(entry['shape'], dims)}" for entry in index[kind]]
    lines.append("dims:")
    lines += [
        f"  {dim['name']}: {dim['min']} to {dim['max']}"
        + (f", multiples of {dim['multiple_of']}" if dim["multiple_of"] > 1 else "")
        for dim in index["dims"]
    ]
    lines.append("profiles:")
    for profile in index["profiles"]:
        for name, shape in profile["shapes"].items():
            lines.append(f"  {profile['name']}: {name} min {shape['min']} opt {shape['opt']} max {shape['max']}")
    for name, target in index["targets"].items():
        lines.append(
            f"target {name}: SM {target['sm']}, {target['toolchain']} {target['version']}, {target['platform']}"
        )
        for part in target["partitions"]["partitions"]:
            if part["kind"] == "tensorrt":
                size = index["files"][target["engines"][part["name"]]]["size"]
                lines.append(f"  {part['name']}: engine, {size / 1e6:.1f} MB")
            else:
                reasons = "; ".join(f"{operator}: {reason}" for operator, reason in part["reasons"].items())
                lines.append(f"  {part['name']}: PyTorch ({reasons})")
    return lines


def _shape(shape: Sequence[Any], dims: Sequence[str]) -> str:
    return "[" + ", ".join(_size(size, dims) for size in shape) + "]"


def _size(size: Any, dims: Sequence[str]) -> str:
    if isinstance(size, int):
        return str(size)
    operator, *operands = size
    if operator == "sym":
        return dims[operands[0]] if operands[0] < len(dims) else f"s{operands[0]}"
    if operator == "mul" and len(operands) == 2 and isinstance(operands[0], int) and operands[1][0] == "sym":
        return str(dims[operands[1][1]])  # a dim that is a multiple: its size, not its unit
    return f"{operator}({', '.join(_size(operand, dims) for operand in operands)})"


def fields(found: Document) -> list[str]:
    """Plain names and values."""
    shown = {name: value for name, value in found.items() if name not in ("schema", "ok")}
    width = max(len(name) for name in shown)
    return [f"{name.replace('_', ' '):{width}}  {_value(name, value)}" for name, value in shown.items()]


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes") or name == "bytes_read":
        return f"{value:,} ({value / 2**20:,.1f} MiB)"
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return "".join(f"\n  {entry.get('kind')} {entry.get('name')}: {entry.get('text')}" for entry in value) or "none"
    return str(value)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _styled(text: str, **style: Any) -> str:
    return click.style(text, **style) if sys.stderr.isatty() else text


def _red(text: str) -> str:
    return _styled(text, fg="red", bold=True)


def _green(text: str) -> str:
    return _styled(text, fg="green")


def _dim(text: str) -> str:
    return _styled(text, dim=True)
