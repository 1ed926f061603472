"""Measure `trtbuild.compile` of small modules in one program. The cache has no results of these modules.

The first call has a separate row, because it starts the processes that load torch. The later calls are compared with
torch.export.export of the same module, because `trtbuild.compile` has to export the module, too.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Measurement, Ratio, Row, Value
from benchmarks.session import Session

_SCRIPT = Path(__file__).parent / "scripts" / "compile_modules.py"

#: The bound for the median time of a module after the first, in seconds.
_MEDIAN_BOUND_S = 2.0


def rows(session: Session) -> Iterator[Row]:
    folder = session.empty_folder("compile")
    program = subprocess.run(
        [sys.executable, _SCRIPT, folder / "cache", str(1 + session.sizes.cold_repeats)],
        cwd=folder,
        env=session.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (first_s, _), *others = [map(float, line.split()) for line in program.stdout.splitlines()]
    compile_times_s, export_times_s = zip(*others, strict=True)
    compiled = Value("trtbuild.compile", statistics.median(compile_times_s))
    exported = Value("torch.export", statistics.median(export_times_s))
    yield Measurement("compile: the first small module of a program", Value("trtbuild.compile", first_s))
    yield Measurement("compile: a small module after the first", compiled, bound=_MEDIAN_BOUND_S)
    yield Ratio("compile: a small module after the first", compiled, exported)
