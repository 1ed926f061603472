"""A snapshot may contain the state of a file only if every later edit is certain to change this state.

`tests/test_null_build.py` tests the use of snapshots.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild import null_build
from trtbuild.driver.up_to_date import settled
from trtbuild.driver.up_to_date.settled import Unsettled


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_new_file_is_checked_after_a_tick_of_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "fresh"
    path.write_bytes(b"fresh")
    stat = settled.verified_stat(str(path), digest(b"fresh"), None)
    assert null_build.identity(stat) == null_build.identity(path.stat())
    assert time.time_ns() >= stat.st_ctime_ns + settled._FINE_TICK_NS
    path.write_bytes(b"FRESH")
    assert null_build.identity(path.stat()) != null_build.identity(stat)


def test_a_file_with_another_content_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"now")
    with pytest.raises(Unsettled):
        settled.verified_stat(str(path), digest(b"then"), None)


def test_a_file_whose_digest_is_known_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"other bytes: they are not read")
    known = digest(b"known"), path.stat()
    assert settled.verified_stat(str(path), digest(b"known"), known) == known[1]


@pytest.mark.parametrize(
    ("ctime_ns", "later_ns", "is_settled"),
    [
        # a time with nanoseconds comes from a fine clock, which advances at least every 20 ms
        (1_000_000_000_123_456_789, 19_000_000, False),
        (1_000_000_000_123_456_789, 20_000_000, True),
        # a time in whole milliseconds comes from a coarse clock, which advances at least every 2 s
        (1_000_000_000_000_000_000, 20_000_000, False),
        (1_000_000_000_000_000_000, 1_999_999_999, False),
        (1_000_000_000_000_000_000, 2_000_000_000, True),
        # a time in the future
        (1_000_000_000_123_456_789, -1, False),
    ],
)
def test_a_change_time_is_settled_after_a_tick_of_its_clock(ctime_ns: int, later_ns: int, is_settled: bool) -> None:
    stat = SimpleNamespace(st_ctime_ns=ctime_ns)
    assert settled.is_settled(stat, ctime_ns + later_ns) is is_settled  # type: ignore[arg-type]


def test_the_clock_of_this_file_system_has_the_assumed_tick(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(20):
        path.write_bytes(b"a")
        before = path.stat()
        if settled._tick_ns(before) != settled._FINE_TICK_NS:
            pytest.skip("a coarse file system")
        while time.time_ns() < before.st_ctime_ns + settled._FINE_TICK_NS:
            time.sleep(0.002)
        path.write_bytes(b"b")
        assert path.stat().st_ctime_ns != before.st_ctime_ns
