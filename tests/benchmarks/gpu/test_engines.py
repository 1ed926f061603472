"""The measurement of engines checks that the Python that builds has no torch."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.figure import Check
from benchmarks.gpu.host import Host
from benchmarks.gpu.subjects.engines import rows


def test_the_check_fails_if_the_python_that_builds_has_torch(tmp_path: Path) -> None:
    host = Host(
        examples=tmp_path,
        vit=tmp_path,
        quantized=tmp_path,
        decoders=tmp_path,
        python_without_torch=Path(sys.executable),
        points=0,
        repeats=1,
        work=tmp_path,
    )
    what = "the Python that builds has no torch"
    assert next(rows(host)) == Check(what, False, "torch is imported")
