"""Reports for tests of the page, made without a build: with hostile names, or with many engines and layers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.driver.reports.logs import a_log
from trtbuild.driver.reports.documents import Cut, EngineRow, PackageView, PartitionRow, Report
from trtbuild.driver.reports.making import make_report

#: A name that would run a script if the page inserted the name as markup.
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>'\"&\u2028"

POINT = {"profile": HOSTILE, "which": "min", "dims": {"batch": 1}, "seed": 1, "zeros": False}
VERIFIED: dict[str, Any] = {
    "by": HOSTILE,
    "against": "PyTorch",
    "status": "wrong",
    "targets": [HOSTILE],
    "tolerance": 1e-5,
    "points": [POINT],
    "partitions": [
        {"partition": "p0", "status": "right", "error": 2e-7, "worst": POINT, "place": None},
        {
            "partition": HOSTILE,
            "status": "wrong",
            "error": 0.5,
            "worst": POINT,
            "place": {"module": HOSTILE},
            "by_point": [{"point": 0, "error": 0.25, "share": 25000.0}, {"point": 7, "error": math.nan, "share": None}],
        },
        {"partition": "p7", "status": "wrong", "error": math.nan, "worst": POINT, "place": None},
        {"of": "a later version"},
    ],
    "whole": {"status": "unchecked", "error": None, "worst": None},
}
BENCH: dict[str, Any] = {
    "schema": "trtbuild.bench/1",
    "model": HOSTILE,
    "device": "cpu",
    "device_name": None,
    "computed_by": "PyTorch",
    "points": [{"label": HOSTILE, "shapes": {}, "dims": {}}],
    "runs": [
        {
            "runner": "trtbuild",
            "point": 0,
            "first_s": 0.1,
            "count": 10,
            "latency_ms": {"min": 1.0, "p50": 1.5, "p90": 2.0, "p99": 3.0, "max": 4.0, "mean": 1.6},
        }
    ],
}


def hostile_report(project: Path) -> Report:
    """Return the report of a failed build in which most texts are `HOSTILE`.

    The report compares it with an earlier build, which was killed after its seventh event.
    """
    report = make_report(project, a_log(HOSTILE), a_log(HOSTILE)[:7])
    partitions = [
        PartitionRow(
            name=HOSTILE,
            kind="torch",
            reads=[HOSTILE],
            outputs=[HOSTILE],
            calls=3,
            modules={HOSTILE: 3},
            reasons={HOSTILE: HOSTILE},
            types=[],
        ),
        PartitionRow(
            name="p0",
            kind="tensorrt",
            reads=["x"],
            outputs=["float32[2]"],
            calls=9,
            modules={"a.b": 9},
            reasons={},
            types=["float16"],
        ),
    ]
    view = PackageView(
        model=HOSTILE,
        path=HOSTILE,
        precision="float16",
        signature=HOSTILE,
        cuts=[Cut(targets=[HOSTILE, "ada"], partitions=partitions)],
        verified=[VERIFIED],
        void=HOSTILE,
    )
    return replace(
        report,
        warnings=[HOSTILE],
        notes=[HOSTILE],
        builder=HOSTILE,
        packages=[view, replace(view, model="second", cuts=[], verified=[], void=None)],
        engines=[EngineRow(model=HOSTILE, partition="p0", target="ada", size=10, layers=1)],
        layers=[(0, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "float16", "float16")],
        benches=[BENCH],
    )


def large_report(project: Path, engines: int, layers: int) -> Report:
    """Return the report of a build with `engines` engines. The first engine has `layers` layers."""
    report = make_report(project, a_log(), [])
    (pattern,) = [step for step in report.steps if step.id == "m/engine/p0@ada"]
    steps = [replace(pattern, id=f"m/engine/layers.{number}@ada", critical=False) for number in range(engines)]
    rows = [
        EngineRow(model="m", partition=f"layers.{number}", target="ada", size=1, layers=0) for number in range(engines)
    ]
    parts = [
        PartitionRow(
            name=f"layers.{number}",
            kind="tensorrt",
            reads=["x"],
            outputs=["float32[2]"],
            calls=2,
            modules={f"layers.{number}": 2},
            reasons={},
            types=[],
        )
        for number in range(engines)
    ]
    view = PackageView(
        model="m",
        path="dist/m",
        precision="float32",
        signature="(x)",
        cuts=[Cut(targets=["ada"], partitions=parts)],
        verified=[],
        void=None,
    )
    return replace(
        report,
        steps=[*report.steps, *steps],
        packages=[view],
        engines=rows,
        layers=[(0, f"n{number}", "shuffle", f"layers.{number}", "aten.mm", "", "") for number in range(layers)],
    )
