"""The name of the user and machine that build. Records and signatures contain it."""

from __future__ import annotations

import getpass
import platform


def builder_name() -> str:
    """Return ``user@host``. The user is ``unknown`` if neither the environment nor the user database names it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no entry
        user = "unknown"
    return f"{user}@{platform.node()}"
