"""A test that needs a missing program is skipped, or fails in CI."""

from __future__ import annotations

import pytest

from tests.programs import REQUIRE_PROGRAMS, program


def test_a_missing_program_skips_a_test_and_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRE_PROGRAMS, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install no-such-program"):
        program("no-such-program")
    monkeypatch.setenv(REQUIRE_PROGRAMS, "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        program("no-such-program")


def test_a_program_in_the_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert program("sh").endswith("/sh")
