"""The lock file of a project: reading, writing, and the records that it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.planning.test_locks import KEY, OTHER_DIGEST, PLAN, a_lock
from trtbuild.core.planning.graph import ModelPlan, Reason, Step
from trtbuild.core.planning.locks import LockedStep, LockedTarget
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project import locked
from trtbuild.driver.project.locked import LockGuard
from trtbuild.errors import LockFileError, UsageError

RECIPE = Recipe("engine", 1, (("a", 1),))
RIGHT, WRONG = (Record(RECIPE, {"plan": Output(plan, 10)}) for plan in (PLAN, OTHER_DIGEST))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_lock_is_read_back_and_read_returns_none_without_a_lock(tmp_path: Path) -> None:
    assert locked.read(tmp_path) is None
    assert locked.write(tmp_path, a_lock())
    lock_file = locked.read(tmp_path)
    assert lock_file is not None and lock_file.lock == a_lock()
    assert locked.read(tmp_path / "elsewhere", tmp_path / "trtbuild.lock") == lock_file
    assert names(tmp_path) == ["trtbuild.lock"]


def test_an_unchanged_lock_is_not_written(tmp_path: Path) -> None:
    locked.write(tmp_path, a_lock())
    path = tmp_path / "trtbuild.lock"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # as git checks it out on Windows
    os.utime(path, (1, 1))
    assert not locked.write(tmp_path, a_lock())
    assert path.stat().st_mtime == 1
    lock_file = locked.read(tmp_path)
    assert lock_file is not None and lock_file.lock == a_lock()
    assert locked.write(tmp_path, a_lock(plan=OTHER_DIGEST))


def test_a_new_file_has_the_mode_of_the_umask_and_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        locked.write(tmp_path, a_lock())
    finally:
        os.umask(before)
    assert (tmp_path / "trtbuild.lock").stat().st_mode & 0o777 == 0o640
    (tmp_path / "trtbuild.lock").chmod(0o664)
    locked.write(tmp_path, a_lock(plan=OTHER_DIGEST))
    assert (tmp_path / "trtbuild.lock").stat().st_mode & 0o777 == 0o664


def test_errors_name_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "trtbuild.lock"
    path.write_bytes(b"{\n\xff")
    with pytest.raises(LockFileError, match=r"^trtbuild\.lock:2: it is not UTF-8"):
        locked.read(tmp_path)
    path.write_text("<<<<<<< HEAD\n")
    with pytest.raises(LockFileError, match=r"^trtbuild\.lock:1: a merge conflict"):
        locked.read(tmp_path)
    (tmp_path / "old.lock").write_text("{}")
    with pytest.raises(LockFileError, match=r"old\.lock:1: not a lock file"):
        locked.read(tmp_path / "elsewhere", tmp_path / "old.lock")
    path.unlink()
    path.mkdir()
    with pytest.raises(LockFileError, match=r"^trtbuild\.lock: it cannot be read"):
        locked.read(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        locked.write(tmp_path, a_lock())
    assert names(tmp_path / "trtbuild.lock") == []
    assert names(tmp_path) == ["old.lock", "trtbuild.lock"]  # no incomplete file remains


@pytest.mark.parametrize("is_last_resort", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_wrong_record_of_a_reproducible_toolchain_is_always_refused(is_last_resort: bool, frozen: bool) -> None:
    guard = LockGuard(a_lock(), frozen=frozen)
    assert guard.refusal(KEY, RIGHT, is_last_resort) is None
    assert guard.refusal(KEY, WRONG, is_last_resort) == "its plan differs from trtbuild.lock"
    assert guard.refusal("f" * 64, WRONG, is_last_resort) is None


def test_a_local_record_of_a_toolchain_that_is_not_reproducible_is_used_unless_frozen() -> None:
    model = a_lock().models["net"]
    package = LockedStep("9" * 64, {"index": Output(PLAN, 10)})
    model = replace(
        model,
        targets={"ada": LockedTarget("tensorrt", "10.0.0"), "rtx": LockedTarget("tensorrt-rtx", "1.7.1")},
        steps={
            **model.steps,
            "net/package": package,
            "net/engine/x@rtx": LockedStep("8" * 64, {"plan": RIGHT.outputs["plan"]}),
        },
    )
    lock = replace(a_lock(), models={"net": model})
    guard = LockGuard(lock, frozen=False)
    assert guard.refusal(KEY, WRONG, is_last_resort=True) is None
    assert guard.refusal(KEY, WRONG, is_last_resort=False) is not None
    assert guard.refusal("8" * 64, WRONG, is_last_resort=True) is not None
    index = Record(RECIPE, {"index": Output(OTHER_DIGEST, 10)})
    assert (
        guard.refusal("9" * 64, index, is_last_resort=True) is None
    )  # the package has an engine that is not reproducible
    frozen = LockGuard(lock, frozen=True)
    assert frozen.refusal(KEY, WRONG, is_last_resort=True) is not None
    assert frozen.refusal("9" * 64, index, is_last_resort=True) is not None


def test_engines_that_differ_from_the_lock_are_reported() -> None:
    recorded = Reason("recorded", "")

    def plan(record: Record | None) -> ModelPlan:
        step = Step("net/engine/layers.0@ada", "net", "engine", "hit", recorded, "ada", RECIPE, record)
        return ModelPlan(None, None, {step.id: step})  # type: ignore[arg-type]

    lock = a_lock()
    steps = {"net/engine/layers.0@ada": LockedStep(RECIPE.key, {"plan": RIGHT.outputs["plan"]})}
    lock = replace(lock, models={"net": replace(lock.models["net"], steps=steps)})
    assert locked.differing_engines(None, [plan(WRONG)]) == []
    assert locked.differing_engines(lock, [plan(RIGHT), plan(None)]) == []
    (warning,) = locked.differing_engines(lock, [plan(WRONG)])
    assert warning.startswith("net/engine/layers.0@ada: its plan differs from trtbuild.lock")
    assert "trtbuild lock" in warning
