"""The workers and the store that a build uses, and the message that describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.driver.farm.labels import directory_label, remote_label
from trtbuild.driver.farm.overview import FarmWorker, Overview
from trtbuild.errors import StoreUnavailable

LABEL, RELEASE, DIRECTORY, REMOTE = "trtbuild engine rtx", "trtbuild release 1", "trtbuild store a", "trtbuild store b"


def worker(name: str, *labels: str, slots: int = 1, tasks: tuple[str, ...] = ()) -> FarmWorker:
    return FarmWorker(name, f"tcp://{name}", dict.fromkeys(labels, slots), frozenset(tasks))


def overview(*workers: FarmWorker) -> Overview:
    return Overview(workers, RELEASE, (DIRECTORY, REMOTE))


def test_uses_the_store_that_the_most_slots_reach() -> None:
    near = worker("near", LABEL, RELEASE, DIRECTORY, REMOTE)
    far = worker("far", LABEL, RELEASE, REMOTE, slots=2)
    assert overview(near).store_for(LABEL) == DIRECTORY
    assert overview(near, far).store_for(LABEL) == REMOTE
    assert [each.name for each in overview(near, far).workers_for(LABEL)] == ["near", "far"]
    only_near = worker("only near", LABEL, RELEASE, DIRECTORY)
    assert [each.name for each in overview(only_near, far).workers_for(LABEL)] == ["far"]


def test_without_a_suitable_worker_no_store_is_used() -> None:
    assert overview().store_for(LABEL) is None
    assert overview(worker("old", LABEL, "trtbuild release 0", REMOTE)).store_for(LABEL) is None
    assert overview(worker("other", "trtbuild engine trt", RELEASE, REMOTE)).workers_for(LABEL) == []


def test_counts_the_slots_that_other_builds_do_not_use() -> None:
    busy = worker("busy", LABEL, RELEASE, REMOTE, slots=3, tasks=("of this build", "of another"))
    assert overview(busy).usable_slots(LABEL, {"of this build"}) == 2
    assert overview(busy).usable_slots(LABEL, {"of this build"}, {"busy"}) == 0
    queue = worker("queue", LABEL, RELEASE, REMOTE, slots=1, tasks=("of another", "waits", "waits, too"))
    assert overview(busy, queue).usable_slots(LABEL, {"of this build"}) == 2


def test_describes_many_workers_in_one_sentence() -> None:
    strange = [worker(f"dask{number}") for number in range(8)]
    text = overview(worker("w1", LABEL, RELEASE, REMOTE), *strange).describe({"w1": "its disk is full"})
    assert text.startswith(
        "no worker can be used; left out: w1: its disk is full; dask0: it was not started by trtbuild"
    )
    assert text.endswith("and 3 more")


def test_the_label_of_a_remote_does_not_depend_on_its_credentials() -> None:
    plain = remote_label("https://cache.example/team")
    assert remote_label("https://user:secret@cache.example/team") == plain
    others = ["https://cache.example/a@team", "https://cache.example/b@team", "https://other.example/b@team"]
    assert len({plain, *map(remote_label, others)}) == 4


def test_a_cache_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="the cache cannot be used: Not a directory"):
        directory_label(tmp_path / "file" / "cache")
