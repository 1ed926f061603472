"""The results of ``trtbuild run`` and ``trtbuild bench`` as text."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from trtbuild.cli.screens.runs import bench_lines, milliseconds, run_lines
from trtbuild.driver.running.documents import Bench, BenchPoint, BenchRun, Run, TensorSummary
from trtbuild.driver.workers.stopwatch import Budget, Latency

RAN = Run(
    package="dist/det",
    model="det",
    device="cpu",
    reference=True,
    computed_by="PyTorch",
    target=None,
    profile="photo",
    dims={"batch": 4, "height": 320},
    duration_s=0.0123,
    inputs=[
        TensorSummary(
            name="image",
            dtype="float32",
            shape=[4, 3, 320],
            min=-1.5,
            max=2.0,
            mean=0.25,
            nan=0,
            inf=0,
            source="random",
        )
    ],
    outputs=[
        TensorSummary(name="boxes", dtype="float16", shape=[4, 2], min=0.0, max=1.0, mean=0.5, nan=3, inf=0),
        TensorSummary(name="n", dtype="int64", shape=[0], min=None, max=None, mean=None, nan=0, inf=0),
    ],
    output="out.npz",
)


def lines(styled: list[str]) -> list[str]:
    return [click.unstyle(line) for line in styled]


def test_a_run_lists_inputs_and_outputs() -> None:
    assert lines(run_lines(RAN)) == [
        "det on the CPU: the reference program in PyTorch, no engine, 12.3 ms for the first call",
        "batch 4, height 320, profile photo",
        "inputs",
        "  image  float32  [4, 3, 320]  min -1.5  max 2  mean 0.25  random",
        "outputs",
        "  boxes  float16  [4, 2]  min 0  max 1  mean 0.5  3 nan",
        "  n      int64    [0]     empty",
        "written: out.npz",
    ]


def test_a_run_on_a_gpu_names_the_target() -> None:
    on_gpu = replace(RAN, reference=False, computed_by=None, device="cuda:0", target="ada")
    assert lines(run_lines(on_gpu))[0].startswith("det on cuda:0: engines of target ada, ")


def latency(p50: float) -> Latency:
    return Latency(min=p50, p50=p50, p90=2 * p50, p99=3 * p50, max=4 * p50, mean=p50)


BENCHED = Bench(
    package="dist/det",
    computed_by=None,
    budget=Budget(0.5, 1.0),
    duration_s=3.0,
    versions={},
    model="det",
    device="cuda:0",
    device_name="RTX 4090",
    reference=False,
    target="ada",
    points=[
        BenchPoint(shapes={}, label="photo min", dims={"batch": 1}),
        BenchPoint(shapes={}, label="photo opt", dims={}),
    ],
    runs=[
        BenchRun(runner="trtbuild", point=0, first_s=0.5, count=10, latency_ms=latency(0.25)),
        BenchRun(runner="trtbuild", point=1, first_s=0.25, count=10, latency_ms=latency(2.0)),
        BenchRun(runner="eager", point=0, first_s=0.1, count=10, latency_ms=latency(1.0)),
    ],
    warnings=["torch.compile: no compiler"],
    plot="det.svg",
)


def test_latencies_are_listed_by_shape_and_compared_with_eager() -> None:
    assert lines(bench_lines(BENCHED)) == [
        "det on cuda:0: engines of target ada (RTX 4090)",
        "  shape               runner    p50 ms  p90 ms  p99 ms  calls/s               first s",
        "  photo min: batch 1  trtbuild    0.25     0.5    0.75    4,000  4.00× eager     0.50",
        "                      eager       1.00    2.00    3.00    1,000                  0.10",
        "  photo opt           trtbuild    2.00    4.00    6.00      500                  0.25",
        "warning: torch.compile: no compiler",
        "drawn: det.svg",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (0.5, "0.5"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_milliseconds_are_rounded_by_their_size(value: float, text: str) -> None:
    assert milliseconds(value) == text
