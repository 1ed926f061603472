"""A Dask preload: prepares a worker process before it joins the scheduler.

Ctrl-C in a terminal reaches all processes. A worker ignores it, because the process that started the worker ends the
worker. The import of `performing` loads the code that jobs need, so that the first job does not wait for it.
"""

from __future__ import annotations

import signal

from trtbuild.driver.farm import performing

__all__ = ["dask_setup", "performing"]


def dask_setup(worker: object) -> None:
    """Ignore Ctrl-C. Dask calls this in the main thread of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
