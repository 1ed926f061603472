"""Work that does not fit on the disk or into memory is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from trtbuild.driver.outputs import OutputFile
from trtbuild.driver.project import shortage
from trtbuild.errors import InsufficientResources

GIB = 1 << 30


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def one_gib_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(folder: Path) -> _Usage:
        folder.stat()
        return _Usage(100 * GIB, 99 * GIB, GIB)

    monkeypatch.setattr(shutil, "disk_usage", usage)


@pytest.mark.usefixtures("one_gib_left")
def test_the_cache_needs_room_for_the_blobs_that_it_lacks(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    shortage.refuse_small_cache_disk(root, "the weights", GIB, lambda: pytest.fail("the blobs were read without need"))
    shortage.refuse_small_cache_disk(root, "the weights", 3 * GIB, lambda: GIB)
    with pytest.raises(InsufficientResources) as caught:
        shortage.refuse_small_cache_disk(root, "the weights", 3 * GIB, lambda: 2 * GIB)
    assert caught.value.text == f"the cache {root} needs 2.0 GiB more for the weights, and its disk has 1.0 GiB left"
    assert "TRTBUILD_CACHE_DIR" in str(caught.value.hint) and "trtbuild cache gc" in str(caught.value.hint)
    with pytest.raises(InsufficientResources, match=r"needs 3\.0 GiB more"):
        shortage.refuse_small_cache_disk(root, "the weights", 3 * GIB)


@pytest.mark.usefixtures("one_gib_left")
def test_an_output_needs_room_for_its_growth_or_its_largest_file_if_that_is_more(tmp_path: Path) -> None:
    """A new file is written completely before the old one is removed. So there must be room for the largest new file, even
    if the output grows by less."""

    def refuse(*sizes: int) -> None:
        files = [OutputFile(f"dist/{number}", str(number)) for number in range(len(sizes))]
        known = {str(number): size for number, size in enumerate(sizes)}
        shortage.refuse_small_output_disk(tmp_path, "dist", "net", files, known)

    refuse(GIB // 2, GIB // 2)
    with pytest.raises(InsufficientResources, match=r"the outputs of model 'net' need 1\.5 GiB more in dist"):
        refuse(GIB, GIB // 2)
    (tmp_path / "dist").mkdir()
    with open(tmp_path / "dist" / "0", "wb") as old:
        old.truncate(GIB)  # a sparse file
    refuse(GIB, GIB // 2)
    with pytest.raises(InsufficientResources, match=r"need 1\.5 GiB more"):
        refuse(3 * GIB // 2, 0)


def test_nothing_is_refused_if_the_size_of_the_disk_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "disk_usage", fail)
    assert shortage.free_disk_bytes(tmp_path) is None
    shortage.refuse_small_cache_disk(tmp_path, "the weights", 1 << 60)


def test_a_step_needs_its_least_memory() -> None:
    shortage.refuse_small_memory("net/engine/model@ada", 3 * GIB, 4 * GIB, 4 * GIB)
    shortage.refuse_small_memory("net/engine/model@ada", 3 * GIB, 4 * GIB, None)
    with pytest.raises(InsufficientResources) as caught:
        shortage.refuse_small_memory("net/engine/model@ada", 3 * GIB, 4 * GIB, 200 << 20)
    assert caught.value.text == (
        "net/engine/model@ada needs at least 4.0 GiB of memory for its weights of 3.0 GiB, and 200.0 MiB are free"
    )
    assert "-j 1" in str(caught.value.hint)
