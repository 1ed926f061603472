"""Latencies as a picture: a bar for each shape and runner, in one SVG file without references to other files.

A bar ends at the median. A line continues to p99 and has a mark at p90. The axis begins at 0 and includes every p90. A p99
beyond the axis, for example because of one slow call, is shown as an arrow at the end of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from trtbuild.cli.screens.runs import label, milliseconds
from trtbuild.driver.running.documents import Bench, BenchRun

_COLOURS = {"trtbuild": "#2f7d4f", "eager": "#8a8f98", "torch.compile": "#c7772e"}
_OTHER_COLOUR = "#5b6abf"
#: In pixels: the width of the picture, and the margins beside the axis.
_WIDTH, _LEFT, _RIGHT = 860, 250, 90
#: In pixels: the height of a bar with the space below it, the gap after the bars of a shape, and the margin above all bars.
_BAR, _GAP, _TOP = 16, 14, 64


def latency_svg(document: Bench) -> str:
    runs = document.runs
    points = [[run for run in runs if run.point == number] for number in range(len(document.points))]
    largest_p90 = max([1e-6, *(run.latency_ms.p90 for run in runs)])
    axis_end = min(2 * largest_p90, max([1e-6, *(run.latency_ms.p99 for run in runs)]))
    ticks = _ticks(axis_end)
    scale = (_WIDTH - _LEFT - _RIGHT) / ticks[-1]
    height = _TOP + sum(len(point_runs) * _BAR + _GAP for point_runs in points) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(_title(document))}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="15" font-weight="600" fill="#1b1f24">{escape(_title(document))}</text>',
        *_legend(list(dict.fromkeys(run.runner for run in runs))),
        *_axis(ticks, scale, height),
    ]
    y = _TOP
    for point, point_runs in zip(document.points, points, strict=True):
        middle = y + len(point_runs) * _BAR / 2 + 4
        lines.append(
            f'<text x="{_LEFT - 10}" y="{middle:.1f}" text-anchor="end" fill="#1b1f24">{escape(label(point))}</text>'
        )
        for run in point_runs:
            lines += _bar(run, y, scale)
            y += _BAR
        y += _GAP
    return "\n".join([*lines, "</svg>", ""])


def _title(document: Bench) -> str:
    where = (
        "the reference program on the CPU, no engine" if document.reference else f"{document.device}, {document.target}"
    )
    return f"{document.model}: latency of a call in ms ({where})"


def _legend(runners: list[str]) -> Iterator[str]:
    x = 16
    for runner in runners:
        yield f'<rect x="{x}" y="36" width="10" height="10" fill="{_colour(runner)}"/>'
        yield f'<text x="{x + 15}" y="45" fill="#1b1f24">{escape(runner)}</text>'
        x += 40 + 7 * len(runner)
    yield f'<text x="{_WIDTH - 16}" y="45" text-anchor="end" fill="#6b7280">bar: median, mark: p90, line: p99</text>'


def _axis(ticks: list[float], scale: float, height: int) -> Iterator[str]:
    for tick in ticks:
        x = _LEFT + tick * scale
        yield _line(x, _TOP - 6, x, height - 28, "#e5e7eb")
        yield f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="#6b7280">{tick:g}</text>'


def _bar(run: BenchRun, y: float, scale: float) -> Iterator[str]:
    latency, colour = run.latency_ms, _colour(run.runner)
    median, p90, p99 = (_LEFT + getattr(latency, name) * scale for name in ("p50", "p90", "p99"))
    middle, end = y + (_BAR - 3) / 2, float(_WIDTH - _RIGHT)
    yield f'<rect x="{_LEFT}" y="{y:.1f}" width="{median - _LEFT:.1f}" height="{_BAR - 3}" fill="{colour}"/>'
    yield _line(median, middle, min(p99, end), middle, colour)
    yield _line(p90, middle - 4, p90, middle + 4, colour)
    if p99 > end:
        yield _line(end - 5, middle - 4, end, middle, colour)
        yield _line(end - 5, middle + 4, end, middle, colour)
    text = milliseconds(latency.p50)
    yield f'<text x="{min(p99, end) + 6:.1f}" y="{middle + 4:.1f}" font-size="11" fill="#1b1f24">{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _colour(runner: str) -> str:
    return _COLOURS.get(runner, _OTHER_COLOUR)


def _ticks(longest: float) -> list[float]:
    """Five to ten ticks from 0, in steps of 1, 2 or 5 times a power of ten. The last tick is at least `longest`."""
    power = 10.0 ** math.floor(math.log10(longest / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if longest / (power * factor) <= 9)
    return [round(number * step, 12) for number in range(math.ceil(longest / step) + 1)]
