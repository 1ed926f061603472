"""The import of a bundle: an error says how many records were imported, and the lock file may refuse records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.test_bundle import bundle_of, export_bundle, members_of
from trtbuild.core.planning import lockfile
from trtbuild.core.planning.locks import LOCK_FILE, Lock, LockedModel, LockedStep, LockedTarget
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.cache.bundles import import_bundle
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import BundleRefused
from trtbuild.store.local.local import LocalStore


def write_damaged_bundle(folder: Path, record_count: int) -> Path:
    """Write a bundle of `record_count` valid records, and of one more record under a wrong key."""
    store = LocalStore(folder / "source")
    records = []
    for number in range(record_count + 1):
        output = store.put_bytes(b"plan %d" % number)
        records.append(store.put_record(Record(Recipe("engine", 1, (("a", number),)), {"plan": output})))
    bundle = export_bundle(store, records, folder / "team.bundle")
    head, *members = [
        (f"ac/ff/{'f' * 64}" if name.endswith(records[-1].recipe.key) else name, data)
        for name, data in members_of(bundle)
    ]
    damaged = folder / "damaged.bundle"
    damaged.write_bytes(
        bundle_of([head, *sorted(members, key=lambda member: (member[0].startswith("ac/"), member[0]))])
    )
    return damaged


@pytest.mark.parametrize(
    ("record_count", "text", "hint"),
    [
        (2, "not all records of the bundle are imported: ", "2 valid records were imported; export the bundle again"),
        (1, "not all records of the bundle are imported: ", "1 valid record was imported; export the bundle again"),
        (0, "the bundle is not imported: ", "nothing of it was used; export the bundle again"),
    ],
)
def test_an_error_says_how_many_records_were_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_count: int, text: str, hint: str
) -> None:
    bundle = write_damaged_bundle(tmp_path, record_count)
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(BundleRefused) as error:
        import_bundle(Request(tmp_path), bundle, lambda *_: None)
    assert error.value.text.startswith(text) and "another key" in error.value.text
    assert error.value.hint == hint
    assert len(list((tmp_path / "cache").glob("ac/*/*"))) == record_count


@pytest.mark.parametrize("is_locked", [True, False], ids=["the bundle has the locked engine", "it has another engine"])
def test_an_import_replaces_an_engine_that_the_lock_refuses_by_the_locked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    recipe = Recipe("engine", 1, (("a", 1),))
    source, local = LocalStore(tmp_path / "source"), LocalStore(tmp_path / "cache")
    theirs = source.put_record(Record(recipe, {"plan": source.put_bytes(b"the plan of the bundle")}))
    own = local.put_record(Record(recipe, {"plan": local.put_bytes(b"the plan of this machine")}))
    bundle = export_bundle(source, [theirs], tmp_path / "release.bundle")
    plan = theirs.outputs["plan"] if is_locked else source.put_bytes(b"a third plan")
    steps = {"net/engine/model@ada": LockedStep(recipe.key, {"plan": plan})}
    model = LockedModel({"torch": "2.9"}, {"ada": LockedTarget("tensorrt", "10.9")}, steps)
    (tmp_path / LOCK_FILE).write_text(lockfile.to_text(Lock("linux", {"engine": 1}, {}, {"net": model})))
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    imported = import_bundle(Request(tmp_path), bundle, lambda *_: None)
    assert imported.ok and (imported.records, imported.present) == ((1, 0) if is_locked else (0, 1))
    assert LocalStore(tmp_path / "cache").get_record(recipe.key) == (theirs if is_locked else own)
