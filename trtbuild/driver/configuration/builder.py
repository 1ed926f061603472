"""The name of the user and machine that build, and the time at which a step ends. Records and signatures contain them."""

from __future__ import annotations

import getpass
import platform
import time


def builder_name() -> str:
    """Return ``user@host``. The user is ``unknown`` if neither the environment nor the user database names it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no entry
        user = "unknown"
    return f"{user}@{platform.node()}"


def time_and_builder() -> dict[str, str]:
    """The provenance of a step or a comparison that has just finished: when it finished, and who ran it."""
    return {"finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "builder": builder_name()}
