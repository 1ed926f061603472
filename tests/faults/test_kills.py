"""Run `tests.faults.kills` with 16 kills, or with the number in the environment variable ``TRTBUILD_KILLS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults.kills import VICTIMS, KillTest, Tally, run
from trtbuild.store.local.local import LocalStore

#: With 100 kills or more, more variants of the project are tried.
KILLS = int(os.environ.get("TRTBUILD_KILLS", "16"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the test reads /proc")
def test_after_a_kill_the_cache_is_valid_and_the_next_build_is_right(tmp_path: Path) -> None:
    tally = run(tmp_path, KILLS, seed=KILLS, variants=2 if KILLS < 100 else 6)
    assert tally.total >= KILLS
    assert tally.completed > 0
    # kills were delivered to each kind of victim, and during a write
    assert set(tally.kills) == set(VICTIMS)
    assert tally.unfinished >= (KILLS // 10 if KILLS >= 100 else 1)


def test_the_checks_notice_a_wrong_entry_and_a_half_output(tmp_path: Path) -> None:
    test = KillTest.__new__(KillTest)  # without `__init__`, which runs builds
    test.project, test.cache = tmp_path / "project", tmp_path / "cache"
    test._seen, test._known = set(), set()
    (test.project / "dist").mkdir(parents=True)
    test.tally = Tally()
    output = LocalStore(test.cache).put_bytes(b"whole")
    assert test._check_state() == []
    half = test.project / "dist" / "half.plan"
    half.write_bytes(b"hal")
    with pytest.raises(AssertionError, match="not a file of a known build"):
        test._check_state()
    half.unlink()
    (test.project / "dist" / ".half.plan.0123.tmp").write_bytes(b"ha")
    assert len(test._check_state()) == 1
    assert test._check_state() == [], "an unfinished file is counted twice"
    blob = test.cache / "cas" / output.sha256[:2] / output.sha256
    blob.chmod(0o644)
    blob.write_bytes(b"wrong")
    with pytest.raises(AssertionError, match="wrong entries"):
        test._check_state()
