"""A snapshot may hold only facts that every later edit changes. Its use is tested in tests/test_null_build.py."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild import null_build
from trtbuild.driver.up_to_date import snapshot
from trtbuild.driver.up_to_date.snapshot import Unsettled
from trtbuild.store.digests.fingerprint import FileDigests


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_fresh_file_is_looked_at_when_its_times_are_older_than_the_clock_can_tell(tmp_path: Path) -> None:
    path = tmp_path / "fresh"
    path.write_bytes(b"fresh")
    found = snapshot._verified_stat(str(path), digest(b"fresh"), FileDigests(None))
    assert null_build.identity(found) == null_build.identity(path.stat())
    assert time.time_ns() >= found.st_ctime_ns + snapshot._FINE_NS
    path.write_bytes(b"FRESH")
    assert null_build.identity(path.stat()) != null_build.identity(found)


def test_another_content_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"now")
    with pytest.raises(Unsettled):
        snapshot._verified_stat(str(path), digest(b"then"), FileDigests(None))


def test_what_is_known_by_its_stat_is_not_read(tmp_path: Path) -> None:
    class Known(FileDigests):
        def known(self, path: Path | str) -> tuple[str, os.stat_result] | None:
            return digest(b"known"), Path(path).stat()

    path = tmp_path / "file"
    path.write_bytes(b"other bytes: they are not read")
    assert snapshot._verified_stat(str(path), digest(b"known"), Known(None)).st_ino == path.stat().st_ino


@pytest.mark.parametrize(
    ("ctime_ns", "later_ns", "settled"),
    [
        (1_000_000_000_123_456_789, 19_000_000, False),
        (1_000_000_000_123_456_789, 20_000_000, True),
        (1_000_000_000_000_000_000, 20_000_000, False),
        (1_000_000_000_000_000_000, 1_999_999_999, False),
        (1_000_000_000_000_000_000, 2_000_000_000, True),
        (1_000_000_000_123_456_789, -1, False),
    ],
)
def test_a_change_time_is_settled_after_a_tick_of_its_clock(ctime_ns: int, later_ns: int, settled: bool) -> None:
    found = SimpleNamespace(st_ctime_ns=ctime_ns)
    assert snapshot._settled(found, ctime_ns + later_ns) is settled  # type: ignore[arg-type]


def test_the_clock_of_this_file_system_is_as_fine_as_it_is_taken_to_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(20):
        path.write_bytes(b"a")
        before = path.stat()
        if snapshot._clock_ns(before) != snapshot._FINE_NS:
            pytest.skip("a coarse file system")
        while time.time_ns() < before.st_ctime_ns + snapshot._FINE_NS:
            time.sleep(0.002)
        path.write_bytes(b"b")
        assert path.stat().st_ctime_ns != before.st_ctime_ns
