"""Who builds: what records and signatures say of it."""

from __future__ import annotations

import getpass
import platform


def builder() -> str:
    """``user@host``, as far as that is known."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this user id
        user = "unknown"
    return f"{user}@{platform.node()}"
