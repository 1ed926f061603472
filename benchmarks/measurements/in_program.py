"""`trtbuild.compile` of small modules in one program, each with a new graph: the first, and those after it.

The first starts the processes that load torch, and the others use them. The floor is torch.export.export of the same
module, which `trtbuild.compile` has to do, too.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Limit, Ratio, Row, Value
from benchmarks.session import Session

_SCRIPT = Path(__file__).parent / "scripts" / "compile_modules.py"

#: A module after the first should not take longer than this, in seconds.
_LONGEST_S = 2.0


def rows(session: Session) -> Iterator[Row]:
    """One program that compiles several modules."""
    folder = session.empty_folder("compile")
    done = subprocess.run(
        [sys.executable, _SCRIPT, folder / "cache", str(1 + session.sizes.cold_repeats)],
        cwd=folder,
        env=session.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    first, *others = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    compiled = Value("trtbuild.compile", statistics.median(seconds for seconds, _ in others))
    exported = Value("torch.export", statistics.median(seconds for _, seconds in others))
    yield Limit("compile: the first small module of a program", Value("trtbuild.compile", first[0]))
    yield Limit("compile: a small module after the first", compiled, _LONGEST_S)
    yield Ratio("compile: a small module after the first", compiled, exported)
