"""The configuration of workers: the address of a Dask scheduler, the files for TLS, and the time to wait for a worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtbuild.driver.configuration.quantities import age_s
from trtbuild.driver.configuration.settings import WorkersSettings, expand_home
from trtbuild.driver.configuration.sources import Sources
from trtbuild.errors import UsageError

#: The fields of ``[workers]`` that are files in PEM format, and their environment variables.
_FILES = {"ca": "TRTBUILD_WORKERS_CA", "cert": "TRTBUILD_WORKERS_CERT", "key": "TRTBUILD_WORKERS_KEY"}


def read_workers(sources: Sources) -> WorkersSettings:
    """Return the settings of workers. Errors are added to `sources.problems`."""
    scheduler = sources.text("TRTBUILD_WORKERS", "workers", "scheduler")
    ca, cert, key = (_file(sources, field, variable) for field, variable in _FILES.items())
    settings = WorkersSettings(None if scheduler is None else scheduler[0], ca, cert, key)
    wait = sources.text("TRTBUILD_WORKERS_WAIT", "workers", "wait")
    if wait is None:
        return settings
    try:
        return replace(settings, wait_s=age_s(wait[0]))
    except UsageError:
        sources.add_problem(wait[1], f"{wait[0]!r} is not a time to wait", "write a number and a unit: 60s, 10m")
        return settings


def _file(sources: Sources, field: str, variable: str) -> Path | None:
    entry = sources.text(variable, "workers", field)
    if entry is None:
        return None
    path = Path(expand_home(entry[0], sources.environ))
    if not path.is_absolute() and entry[1].variable is None:
        sources.add_problem(entry[1], f"{field} {entry[0]!r} is not an absolute path", "begin it with / or ~/")
        return None
    return path.absolute()
