"""The provenance in the record of a step: who ran it, when, and for how long."""

from __future__ import annotations

import time

from trtbuild.driver.configuration.builder import builder_name
from trtbuild.driver.workers.results import Reply


def provenance(reply: Reply) -> dict[str, object]:
    """Return the provenance of a step that a worker on this machine has run."""
    found: dict[str, object] = {
        "duration_s": round(reply.duration_s, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "builder": builder_name(),
    }
    if reply.statistics is not None:
        found["statistics"] = reply.statistics
    return found
