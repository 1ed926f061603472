"""The kinds of worker processes."""

from __future__ import annotations

import sys
from typing import Literal

WorkerKind = Literal["trace", "torch", "engine", "original"]

#: Whether a trace worker does its jobs in copies of itself; else it does one job. System libraries of macOS do not
#: survive a fork.
FORKS = sys.platform == "linux"
