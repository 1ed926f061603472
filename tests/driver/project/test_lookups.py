"""Lookups of damaged and refused records, of forced steps, and of links (`core.recipes.chain`), also by several threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import ModelPlan, Reason, Step, UserCode
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.chain import link_bytes
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.history import History
from trtbuild.driver.project.lookups import _MAX_KEPT_BLOBS, StoreLookups
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore

RECIPE = Recipe("engine", 1, (("a", 1),))
LINK = Recipe("trace-link", 1, (("a", 1),))
FIRST, SECOND = Dependency("file", "a.py"), Dependency("file", "b.py")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


def lookups(store: LocalStore, tmp_path: Path, *, force: bool = False) -> StoreLookups:
    digests = FileDigests(None)
    history = History(tmp_path / ".trtbuild")
    return StoreLookups(LayeredStore(store), tmp_path, history, lambda _: "seen", digests, force=force)


def entry(store: LocalStore, key: str) -> Path:
    return store.root / "ac" / key[:2] / key


def test_a_damaged_record_is_a_miss_with_that_reason(store: LocalStore, tmp_path: Path) -> None:
    store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"plan")}))
    path = entry(store, RECIPE.key)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-5])
    store_lookups = lookups(store, tmp_path)
    assert store_lookups.record(RECIPE.key) is None
    reason = store_lookups.why_unusable(RECIPE.key)
    assert reason == Reason("corrupt", "its record was damaged, and is in quarantine now")
    assert not path.exists()
    assert store_lookups.why_forced_to_run("m/engine", RECIPE.key) is None
    store_lookups.note_run("m/engine", Record(RECIPE, {}))
    assert store_lookups.record(RECIPE.key) is not None


def test_a_record_with_damaged_results_is_a_miss_and_stays_in_its_place(store: LocalStore, tmp_path: Path) -> None:
    store.put_record(Record(RECIPE, {"index": store.put_bytes(b"{")}))
    store_lookups = lookups(store, tmp_path)
    store_lookups.mark_damaged(RECIPE.key)
    assert store_lookups.record(RECIPE.key) is None
    assert store_lookups.why_unusable(RECIPE.key) == Reason("corrupt", "its results are damaged")
    assert entry(store, RECIPE.key).exists()


def test_a_record_that_the_plan_has_refused_is_not_a_new_result(store: LocalStore, tmp_path: Path) -> None:
    """The record is complete, but its blob is invalid. If the record counted as new, planning would never end."""
    refused = store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"{}")}))
    store_lookups, plan = lookups(store, tmp_path), cast("ModelPlan", None)
    assert store_lookups.record(RECIPE.key) == refused
    step = Step("m/engine", "m", "engine", "run", Reason("corrupt", "nonsense"), recipe=RECIPE, refused_record=refused)
    assert store_lookups.find_new_record(plan, step) is None
    better = store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"plan")}), replace=True)
    assert store_lookups.find_new_record(plan, step) == better


def test_a_link_is_written_once(store: LocalStore, tmp_path: Path) -> None:
    lookups(store, tmp_path).write_link(LINK, [FIRST])
    second = lookups(store, tmp_path)
    second.write_link(LINK, [SECOND])
    assert second.read_link(LINK) == (FIRST,), "the second link has replaced the first one"


def test_a_link_that_cannot_be_read_is_replaced(store: LocalStore, tmp_path: Path) -> None:
    store.put_record(Record(LINK, {"next": store.put_bytes(b"[]")}))
    store_lookups = lookups(store, tmp_path)
    assert store_lookups.read_link(LINK) is None
    store_lookups.write_link(LINK, [FIRST])
    assert store_lookups.read_link(LINK) == (FIRST,)
    assert lookups(store, tmp_path).read_link(LINK) == (FIRST,)


def test_forced_steps_run_once(store: LocalStore, tmp_path: Path) -> None:
    store_lookups = lookups(store, tmp_path, force=True)
    reason = store_lookups.why_forced_to_run("m/engine", RECIPE.key)
    assert reason is not None
    assert reason.code == "forced"
    store_lookups.note_run("m/engine", Record(RECIPE, {}))
    assert store_lookups.why_forced_to_run("m/engine", RECIPE.key) is None
    assert store_lookups.why_forced_to_run("n/engine", RECIPE.key) is None, (
        "the step is forced, although another step with the same key has run"
    )


def test_writing_a_link_replaces_its_damaged_blob(store: LocalStore, tmp_path: Path) -> None:
    sha256 = store.put_bytes(link_bytes([FIRST])).sha256
    blob = store.root / "cas" / sha256[:2] / sha256
    blob.chmod(0o644)
    blob.write_bytes(b"damage")
    lookups(store, tmp_path).write_link(LINK, [FIRST])
    assert lookups(store, tmp_path).read_link(LINK) == (FIRST,)


class SlowlyChanging(dict[Any, Any]):
    """A dictionary that lets other threads run during a change."""

    def __delitem__(self, key: object) -> None:
        time.sleep(0)
        super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        time.sleep(0)
        return found


def in_threads(*functions: Callable[[], None]) -> None:
    """Call each function repeatedly for one second, each in its own thread. Raise the error of a function that fails."""
    end = time.monotonic() + 1

    def repeat(work: Callable[[], None]) -> None:
        while time.monotonic() < end:
            work()

    with ThreadPoolExecutor(len(functions)) as threads:
        for future in [threads.submit(repeat, work) for work in functions]:
            future.result()


def test_several_threads_read_more_blobs_than_are_kept(store: LocalStore, tmp_path: Path) -> None:
    store_lookups = lookups(store, tmp_path)
    store_lookups._blobs = SlowlyChanging()
    blobs = [store.put_bytes(f"{number}".encode()).sha256 for number in range(_MAX_KEPT_BLOBS + 20)]

    def read_all() -> None:
        for number, sha256 in enumerate(blobs):
            assert store_lookups.blob(sha256) == f"{number}".encode()

    in_threads(*[read_all] * 4)
    assert len(store_lookups._blobs) <= _MAX_KEPT_BLOBS


def test_two_traces_start_while_another_thread_plans(store: LocalStore, tmp_path: Path) -> None:
    """Before a trace, missing records are looked up again, while another thread's plan looks up records, too."""
    store_lookups = lookups(store, tmp_path)
    store_lookups._records = SlowlyChanging()
    model = Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    plan, declared = ModelPlan(model, ShapePlan((), ())), Declared("trace", (("source", "m:f"),))
    plan.user_code["trace"] = UserCode(declared, ())
    step = Step("m/trace", "m", "trace", "run", Reason("new", "new"), recipe=keys.user_code(declared, ()))
    missing = [f"{number:064x}" for number in range(50)]

    def start_trace() -> None:
        assert store_lookups.find_new_record(plan, step) is None

    def plan_models() -> None:
        assert [store_lookups.record(key) for key in missing] == [None] * len(missing)

    in_threads(start_trace, start_trace, plan_models)


def test_a_lookup_does_not_replace_a_result_that_was_noted_meanwhile(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_lookups, result = lookups(store, tmp_path), Record(RECIPE, {})

    def get_record(self: LayeredStore, key: str, recipe: Recipe | None) -> None:
        store_lookups.note_run("m/engine", result)  # as if another thread did this during the lookup

    monkeypatch.setattr(LayeredStore, "get_record", get_record)
    assert store_lookups.record(RECIPE.key) == result
