"""The plot of ``trtbuild bench``: its bars and ticks. Any names and numbers give a well-formed file."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.cli.screens.test_runs import BENCHED, latency
from trtbuild.cli.screens.latency_plot import _ticks, latency_svg
from trtbuild.driver.running.documents import BenchPoint, BenchRun

SVG = "{http://www.w3.org/2000/svg}"


def bars(text: str) -> list[tuple[float, str]]:
    """Return (width, colour) of each bar. The background and the squares of the legend are left out."""
    root = ElementTree.fromstring(text)
    rectangles = [(float(entry.get("width", "0")), str(entry.get("fill"))) for entry in root.iter(f"{SVG}rect")]
    return [(width, colour) for width, colour in rectangles[1:] if width != 10]


def test_the_length_of_a_bar_is_the_median() -> None:
    widths = [width for width, _ in bars(latency_svg(BENCHED))]
    assert len(widths) == 3
    assert widths[1] == pytest.approx(4 * widths[0], abs=0.5)  # 1.0 ms by eager, 0.25 ms by trtbuild
    assert widths[2] == pytest.approx(8 * widths[0], abs=0.5)


def test_each_runner_has_its_own_colour() -> None:
    assert len({colour for _, colour in bars(latency_svg(BENCHED))}) == 2


def test_the_plot_loads_nothing_from_elsewhere() -> None:
    text = latency_svg(BENCHED).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|href|url\(|<script|<image|@import", text)


def test_names_are_escaped() -> None:
    escaped = replace(BENCHED, model="<a&b>", points=[BenchPoint(label='"x" <y>', shapes={}, dims={})] * 2)
    root = ElementTree.fromstring(latency_svg(escaped))
    assert any("<a&b>" in (entry.text or "") for entry in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("longest", [1e-9, 0.003, 0.9, 1.0, 7.0, 1234.5, 1e6])
def test_ticks_are_few_and_reach_the_longest_latency(longest: float) -> None:
    ticks = _ticks(longest)
    assert ticks[0] == 0 and 2 <= len(ticks) <= 11
    assert ticks[-1] >= longest * (1 - 1e-9)


def test_one_slow_call_does_not_shorten_the_bars() -> None:
    slow = replace(BENCHED.runs[0], latency_ms=replace(latency(1.0), p99=1000.0))
    (width, _), *_ = bars(latency_svg(replace(BENCHED, runs=[slow])))
    assert width > 50
    lines = ElementTree.fromstring(latency_svg(replace(BENCHED, runs=[slow]))).iter(f"{SVG}line")
    assert max(float(line.get("x2", "0")) for line in lines) <= 860, "a line ends outside of the plot"


def test_without_timings_the_plot_is_empty() -> None:
    assert bars(latency_svg(replace(BENCHED, runs=[], points=[]))) == []


def test_a_latency_of_zero_is_accepted() -> None:
    run = BenchRun(runner="trtbuild", point=0, first_s=0.0, count=1, latency_ms=latency(0.0))
    ElementTree.fromstring(latency_svg(replace(BENCHED, runs=[run])))
