"""Finds the programs other than Python that tests run.

CI has all of them. Elsewhere, a test is skipped if its program is missing.
"""

from __future__ import annotations

import os
import shutil

import pytest

#: The environment variable that .ci/run sets. If it is set, a missing program is a failure.
REQUIRE_PROGRAMS = "REQUIRE_TEST_PROGRAMS"


def program(name: str) -> str:
    """Return the path of a program, such as ``nginx``. If the program is missing, skip the test, or fail it in CI."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if path is None:
        message = f"{name} is not installed: apt-get install {name}"
        pytest.fail(message) if os.environ.get(REQUIRE_PROGRAMS) else pytest.skip(message)
    return path
