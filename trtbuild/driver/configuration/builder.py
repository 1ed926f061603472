"""The name of the builder that records and signatures contain."""

from __future__ import annotations

import getpass
import platform


def builder_name() -> str:
    """Return ``user@host``; the user is ``unknown`` if the user id has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no entry
        user = "unknown"
    return f"{user}@{platform.node()}"
