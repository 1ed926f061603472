"""The answers that planning gets from a damaged store, and the repair of a chain's links."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import ModelPlan, Reason, Step
from trtbuild.core.recipes.chain import link_bytes
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.history import History
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.errors import ManifestErrors
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


def test_a_damaged_record_is_a_miss_that_says_so(store: LocalStore, tmp_path: Path) -> None:
    store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"plan")}))
    path = entry(store, RECIPE.key)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-5])
    look = lookups(store, tmp_path)
    assert look.record(RECIPE.key) is None
    reason = look.unusable(RECIPE.key)
    assert reason is not None
    assert reason.code == "corrupt"
    assert look.forced_to_run("m/engine", RECIPE.key) is None
    look.note_run("m/engine", Record(RECIPE, {}))
    assert look.record(RECIPE.key) is not None


def test_a_record_that_the_plan_cannot_go_by_is_no_new_one(store: LocalStore, tmp_path: Path) -> None:
    """It is whole, and what it left is nonsense. Taken for another build's, it would be planned and refused for ever."""
    refused = store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"{}")}))
    look, plan = lookups(store, tmp_path), cast("ModelPlan", None)
    assert look.record(RECIPE.key) == refused
    step = Step("m/engine", "m", "engine", "run", Reason("corrupt", "nonsense"), recipe=RECIPE, refused=refused)
    assert look.made_meanwhile(plan, step) is None
    better = store.put_record(Record(RECIPE, {"plan": store.put_bytes(b"plan")}), replace=True)
    assert look.made_meanwhile(plan, step) == better


def test_a_link_is_write_once(store: LocalStore, tmp_path: Path) -> None:
    lookups(store, tmp_path).write_link(LINK, [FIRST])
    late = lookups(store, tmp_path)
    late.write_link(LINK, [SECOND])
    assert late.read_link(LINK) == (FIRST,), "the winner's link is the one that is followed"


def test_a_link_that_cannot_be_read_is_replaced(store: LocalStore, tmp_path: Path) -> None:
    store.put_record(Record(LINK, {"next": store.put_bytes(b"[]")}))
    look = lookups(store, tmp_path)
    assert look.read_link(LINK) is None
    look.write_link(LINK, [FIRST])
    assert look.read_link(LINK) == (FIRST,)
    assert lookups(store, tmp_path).read_link(LINK) == (FIRST,)


def test_forced_steps_run_once(store: LocalStore, tmp_path: Path) -> None:
    look = lookups(store, tmp_path, force=True)
    reason = look.forced_to_run("m/engine", RECIPE.key)
    assert reason is not None
    assert reason.code == "forced"
    look.note_run("m/engine", Record(RECIPE, {}))
    assert look.forced_to_run("m/engine", RECIPE.key) is None
    assert look.forced_to_run("n/engine", RECIPE.key) is None, "another step with the same key has its result"


def a_model(weights: str) -> Model:
    return Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("t.yaml", 3), weights=weights)


def test_weights_are_taken_from_their_file_when_they_are_needed(store: LocalStore, tmp_path: Path) -> None:
    save_file({"w": np.arange(4, dtype=np.float32)}, tmp_path / "w.safetensors")
    model = a_model("w.safetensors")
    look = lookups(store, tmp_path)
    table = look.weights_table(model)
    assert table is not None
    sha256 = table["w"].sha256
    assert not store.has(sha256)
    look.keep_file_weights(model, [])
    assert not store.has(sha256)
    look.keep_file_weights(model, [sha256])
    assert store.get_bytes(sha256) == np.arange(4, dtype=np.float32).tobytes()


def test_a_missing_weights_file_is_named_with_its_place(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(ManifestErrors, match=r"gone\.safetensors") as caught:
        lookups(store, tmp_path).weights_table(a_model("gone.safetensors"))
    assert (caught.value.file, caught.value.line) == ("t.yaml", 3)


def test_a_link_whose_blob_was_damaged_unseen_is_whole_when_it_is_written(store: LocalStore, tmp_path: Path) -> None:
    sha256 = store.put_bytes(link_bytes([FIRST])).sha256
    blob = store.root / "cas" / sha256[:2] / sha256
    blob.chmod(0o644)
    blob.write_bytes(b"damage")
    lookups(store, tmp_path).write_link(LINK, [FIRST])
    assert lookups(store, tmp_path).read_link(LINK) == (FIRST,)
