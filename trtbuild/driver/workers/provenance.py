"""The provenance in the record of a step: who ran it, when, and for how long."""

from __future__ import annotations

from trtbuild.driver.configuration.builder import time_and_builder
from trtbuild.driver.workers.results import Reply


def provenance(reply: Reply) -> dict[str, object]:
    """Return the provenance of a step that a worker on this machine has run."""
    found: dict[str, object] = {"duration_s": round(reply.duration_s, 3), **time_and_builder()}
    if reply.statistics is not None:
        found["statistics"] = reply.statistics
    return found
