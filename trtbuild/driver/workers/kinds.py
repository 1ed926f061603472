"""The kinds of worker processes."""

from __future__ import annotations

import sys
from typing import Literal

#: An "original" worker times the model itself in PyTorch.
WorkerKind = Literal["trace", "torch", "engine", "comparison", "original"]

#: Whether a trace worker does each job in a forked child. Otherwise it does one job and ends. (System libraries of macOS
#: do not work after a fork.)
FORKS = sys.platform == "linux"

#: The message to the fork server for a worker that needs no imports in advance (see `PreloadRequest` of
#: `trtbuild.driver.workers.forking.preloading`). A message without bytes would look like the end of the connection.
NO_IMPORTS = b"c"
