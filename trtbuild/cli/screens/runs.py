"""The results of ``trtbuild run`` and ``trtbuild bench`` as text: summaries of tensors, and latencies by shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows
from trtbuild.driver.running.documents import Bench, BenchPoint, BenchRun, Run, TensorSummary

#: The columns of latencies, in milliseconds.
PERCENTILES = ("p50", "p90", "p99")


def run_lines(document: Run) -> list[str]:
    took = milliseconds(document.duration_s * 1e3)
    lines = [f"{_head(document)}, {took} ms for the first call"]
    if document.dims:
        dims = ", ".join(f"{name} {size}" for name, size in document.dims.items())
        profile = f", profile {document.profile}" if document.profile else ""
        lines.append(terminal.dim(f"{dims}{profile}"))
    for kind, entries in (("inputs", document.inputs), ("outputs", document.outputs)):
        lines += [kind, *align_rows(_tensor(entry) for entry in entries)]
    if document.output:
        lines.append(f"written: {terminal.bold(document.output)}")
    return lines


def _head(document: Run | Bench) -> str:
    name = terminal.bold(document.model)
    if document.reference:
        return f"{name} on the CPU: the reference program in {document.computed_by}, no engine"
    return f"{name} on {document.device}: engines of target {document.target}"


def _tensor(entry: TensorSummary) -> tuple[str, ...]:
    shape = f"[{', '.join(map(str, entry.shape))}]"
    if entry.min is None or entry.max is None or entry.mean is None:
        values = "empty" if 0 in entry.shape else "nothing finite"
    else:
        values = f"min {_number(entry.min)}  max {_number(entry.max)}  mean {_number(entry.mean)}"
    not_finite = [f"{number:,} {kind}" for kind, number in (("nan", entry.nan), ("inf", entry.inf)) if number]
    summary = f"{values}  {terminal.yellow(', '.join(not_finite))}" if not_finite else values
    source = (terminal.dim(entry.source),) if entry.source is not None else ()
    return (f"  {entry.name}", entry.dtype, shape, summary, *source)


def _number(value: float) -> str:
    return f"{value:.4g}"


def bench_lines(document: Bench) -> list[str]:
    lines = [f"{_head(document)} ({document.device_name})" if document.device_name else _head(document)]
    rows = [("  shape", "runner", *(f"{name} ms" for name in PERCENTILES), "calls/s", "", "first s")]
    for number, point in enumerate(document.points):
        rows += _rows(number, point, document.runs)
    lines += align_rows(rows, right=(2, 3, 4, 5, 6, 7))
    lines += [f"{terminal.yellow('warning')}: {text}" for text in document.warnings]
    if document.plot:
        lines.append(f"drawn: {terminal.bold(document.plot)}")
    return lines


def _rows(number: int, point: BenchPoint, runs: Sequence[BenchRun]) -> Iterator[tuple[str, ...]]:
    point_runs = [run for run in runs if run.point == number]
    eager = next((run for run in point_runs if run.runner == "eager"), None)
    for position, run in enumerate(point_runs):
        latency = run.latency_ms
        speedup = ""
        if eager is not None and run is not eager:
            speedup = f"{eager.latency_ms.p50 / latency.p50:.2f}× eager"
        yield (
            f"  {label(point)}" if position == 0 else "",
            run.runner,
            *(milliseconds(getattr(latency, name)) for name in PERCENTILES),
            _rate(1e3 / latency.mean),
            speedup,
            f"{run.first_s:.2f}",
        )


def label(point: BenchPoint) -> str:
    """The name of a point, such as ``photo opt: batch 4, height 224``, or ``photo opt`` if the point has no dims."""
    dims = ", ".join(f"{name} {size}" for name, size in point.dims.items())
    return f"{point.label}: {dims}" if dims else point.label


def milliseconds(value: float) -> str:
    """A number of milliseconds, rounded by its size: ``0.0123``, ``1.23``, ``12.3`` or ``1,234``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
