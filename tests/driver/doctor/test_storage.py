"""Findings about file systems, free space, and the index of file digests (``.trtbuild/index``)."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from trtbuild.driver.doctor import storage

MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/team /mnt/team nfs4 rw,vers=4.2 0 0
/dev/sdb1 /mnt/team\\040disk ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/x", "overlay"),
        ("/mnt/team/cache", "nfs4"),
        ("/mnt/team disk/cache", "ext4"),
        ("/mnt/teamwork", "overlay"),
    ],
)
def test_the_file_system_of_a_folder_is_read_from_the_mounts(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert storage.file_system(Path(folder), tmp_path / "mounts") == kind


def test_a_cache_on_nfs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "file_system", lambda folder: "nfs4")
    assert [finding.status for finding in storage.check_cache(tmp_path) if "nfs4" in finding.text] == ["warning"]


@pytest.mark.parametrize(("free", "status"), [(1 << 20, "problem"), (5 << 30, "warning"), (99 << 30, "ok")])
def test_the_status_follows_from_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: usage(100 << 30, 0, free))
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (finding,) = [finding for finding in storage.check_cache(tmp_path) if finding.name == "space"]
    assert finding.status == status


def test_a_damaged_index_is_ok_because_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".trtbuild" / "index").mkdir(parents=True)
    (tmp_path / ".trtbuild" / "index" / "cache.db").write_bytes(b"no database" * 100)
    assert [finding.status for finding in storage.check_state(tmp_path)] == ["ok", "ok"]


def test_an_index_that_cannot_be_replaced_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".trtbuild" / "index" / "cache.db").mkdir(parents=True)
    findings = [finding for finding in storage.check_state(tmp_path) if finding.name == "index"]
    assert [finding.status for finding in findings] == ["warning"]
    assert "rm -r" in (findings[0].fix or "")
