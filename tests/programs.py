"""Programs that some tests run besides Python. CI has them all; elsewhere such a test is skipped where one is missing."""

from __future__ import annotations

import os
import shutil

import pytest

#: Set by .ci/run: nothing may be missing there.
ALL = "REQUIRE_TEST_PROGRAMS"


def program(name: str) -> str:
    """The path of a program, ``nginx`` or ``strace``. Skips the test, or fails it in CI, where it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        said = f"{name} is not installed: apt-get install {name}"
        pytest.fail(said) if os.environ.get(ALL) else pytest.skip(said)
    return found
