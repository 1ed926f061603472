"""What came of running a package, for a person: values in short, and latencies by shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned

Document = dict[str, Any]

#: The columns of latencies, in milliseconds.
PERCENTILES = ("p50", "p90", "p99")


def ran(found: Document) -> list[str]:
    """What went in and what came out."""
    took = milliseconds(found["duration_s"] * 1e3)
    lines = [f"{_head(found)}, {took} ms for the first call"]
    if found["dims"]:
        dims = ", ".join(f"{name} {size}" for name, size in found["dims"].items())
        profile = f", profile {found['profile']}" if found["profile"] else ""
        lines.append(terminal.dim(f"{dims}{profile}"))
    for kind in ("inputs", "outputs"):
        lines += [kind, *aligned(_tensor(entry) for entry in found[kind])]
    if found["output"]:
        lines.append(f"written: {terminal.bold(found['output'])}")
    return lines


def _head(found: Document) -> str:
    name = terminal.bold(found["model"])
    if found["reference"]:
        return f"{name} on the CPU: the reference program in {found['computed_by']}, no engine"
    return f"{name} on {found['device']}: engines of target {found['target']}"


def _tensor(entry: Document) -> tuple[str, ...]:
    shape = f"[{', '.join(map(str, entry['shape']))}]"
    if entry["min"] is None:
        values = "empty" if 0 in entry["shape"] else "nothing finite"
    else:
        values = f"min {_number(entry['min'])}  max {_number(entry['max'])}  mean {_number(entry['mean'])}"
    odd = [f"{entry[kind]:,} {kind}" for kind in ("nan", "inf") if entry[kind]]
    told = f"{values}  {terminal.yellow(', '.join(odd))}" if odd else values
    source = (terminal.dim(entry["from"]),) if "from" in entry else ()
    return (f"  {entry['name']}", entry["dtype"], shape, told, *source)


def _number(value: float) -> str:
    return f"{value:.4g}"


def benched(found: Document) -> list[str]:
    """A row for each shape and runner; in the last column how many times faster than eager that is."""
    lines = [f"{_head(found)} ({found['device_name']})" if found["device_name"] else _head(found)]
    rows = [("  shape", "runner", *(f"{name} ms" for name in PERCENTILES), "calls/s", "", "first s")]
    for number, point in enumerate(found["points"]):
        rows += _rows(number, point, found["runs"])
    lines += aligned(rows, right=(2, 3, 4, 5, 6, 7))
    lines += [f"{terminal.yellow('warning')}: {text}" for text in found["warnings"]]
    if found.get("plot"):
        lines.append(f"drawn: {terminal.bold(found['plot'])}")
    return lines


def _rows(number: int, point: Document, runs: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    own = [run for run in runs if run["point"] == number]
    eager = next((run for run in own if run["runner"] == "eager"), None)
    for place, run in enumerate(own):
        latency = run["latency_ms"]
        speedup = ""
        if eager is not None and run is not eager:
            speedup = f"{eager['latency_ms']['p50'] / latency['p50']:.2f}× eager"
        yield (
            f"  {label(point)}" if place == 0 else "",
            run["runner"],
            *(milliseconds(latency[name]) for name in PERCENTILES),
            _number_of(1e3 / latency["mean"]),
            speedup,
            f"{run['first_s']:.2f}",
        )


def label(point: Document) -> str:
    """``photo opt: batch 4, height 224``; of a model without dims its profile."""
    dims = ", ".join(f"{name} {size}" for name, size in point["dims"].items())
    return f"{point['label']}: {dims}" if dims else str(point["label"])


def milliseconds(value: float) -> str:
    """Three digits that count: ``0.0123``, ``1.23``, ``123``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _number_of(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
