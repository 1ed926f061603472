"""``trtbuild lock`` and the effects of a lock, with the real command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine, ran, step
from tests.projects import copy_project, edit
from trtbuild.core.planning.lockfile import from_text, to_text
from trtbuild.core.planning.locks import Lock
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.cache.locking import pinned_keys
from trtbuild.errors import RemoteDown, UsageError
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

#: The beginning of a model file that imports a second module and lists the directory of the project.
LISTING = 'import os\nimport torch\nfrom models.layer import width\n\nos.listdir(".")\n'
#: A second model with the source of `net`, for the manifest.
TWIN = '  twin: {source: {python: "models.net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}\n'
ENGINE = "net/engine/model@ada"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("locking")
    project = copy_project("mlp", base / "project", ("net:build", "models.net:build"))
    (project / "models").mkdir()
    (project / "models" / "layer.py").write_text("width = 16\n")
    (project / "net.py").rename(project / "models" / "net.py")
    edit(project / "models" / "net.py", "import torch\n", LISTING)
    edit(project / "models" / "net.py", "16", "width")
    trtbuild = CommandLine(base / "project", base / "cache", {"XDG_CONFIG_HOME": str(base / "no-configuration")})
    assert len(ran(trtbuild("build"))) == 6
    return trtbuild


@pytest.fixture
def trtbuild(built: CommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the built project and of its cache, without a lock."""
    shutil.copytree(built.project, tmp_path / "project")
    shutil.copytree(built.cache, tmp_path / "cache")
    return replace(built, project=tmp_path / "project", cache=tmp_path / "cache")


@pytest.fixture
def locked(trtbuild: CommandLine) -> CommandLine:
    trtbuild("lock")
    return trtbuild


def lock_of(trtbuild: CommandLine) -> Lock:
    return from_text((trtbuild.project / "trtbuild.lock").read_text())


def install_versions(folder: Path, **versions: str) -> dict[str, str]:
    """Make Python believe that these versions are installed. Returns the environment variables that do this."""
    for name, version in versions.items():
        information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


# -- writing a lock


def test_steps_that_are_not_built_are_listed_and_no_lock_is_written(trtbuild: CommandLine) -> None:
    shutil.rmtree(trtbuild.cache)
    document = trtbuild("lock", expect=1)
    assert (document["schema"], document["ok"], document["written"]) == ("trtbuild.locked/1", False, False)
    assert [entry["id"] for entry in document["missing"]][:2] == ["net/trace", "net/lower"]
    assert document["missing"][0]["reason"]["code"] == "evicted"
    assert document["next"] == ["trtbuild build", "trtbuild lock"]
    assert not (trtbuild.project / "trtbuild.lock").exists()
    assert "→ trtbuild build, then trtbuild lock" in trtbuild.run("lock").stdout


def test_a_lock_has_the_keys_and_digests_of_all_results(trtbuild: CommandLine) -> None:
    plan = trtbuild("plan")
    document = trtbuild("lock")
    assert document["ok"] and document["written"] and not document["existed"]
    engine_bytes = step(plan, ENGINE)["outputs"]["plan"]["size"]
    assert document["models"] == [
        {"model": "net", "steps": 6, "engines": 1, "targets": ["ada"], "engine_bytes": engine_bytes}
    ]
    lock = lock_of(trtbuild)
    assert {name: entry.key for name, entry in lock.steps.items()} == {
        each["id"]: each["key"] for each in plan["steps"]
    }
    for name in (ENGINE, "net/package"):
        outputs = {kind: output.to_json() for kind, output in lock.steps[name].outputs.items()}
        assert outputs and outputs.items() <= step(plan, name)["outputs"].items()
    assert lock.models["net"].versions.keys() == {"python", "torch", "onnx", "onnx-ir", "onnxscript"}
    assert lock.models["net"].targets["ada"].toolchain == "tensorrt-rtx"
    assert list(lock.manifests) == ["trtbuild.yaml"]


def test_locking_again_writes_nothing_and_no_step_runs(locked: CommandLine) -> None:
    path = locked.project / "trtbuild.lock"
    before = (path.stat().st_ino, path.stat().st_mtime_ns)
    document = locked("lock")
    assert (document["ok"], document["written"], document["differences"]) == (True, False, [])
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before
    assert "unchanged: trtbuild.lock" in locked.run("lock").stdout
    assert ran(locked("build")) == {}  # although the model lists the directory that contains the lock


def test_a_check_lists_the_differences_and_writes_nothing(locked: CommandLine) -> None:
    assert locked("lock", "--check")["ok"]
    text = (locked.project / "trtbuild.lock").read_text()
    edit(locked.project / "trtbuild.yaml", "version: 1\n", "version: 1  # the first\n")
    assert locked("lock", "--check")["ok"]  # the digest of a manifest is for information only
    edit(locked.project / "trtbuild.lock", lock_of(locked).steps[ENGINE].outputs["plan"].sha256, "0" * 64)
    document = locked("lock", "--check", expect=1)
    assert [(entry["area"], entry["name"]) for entry in document["differences"]] == [("step", ENGINE)]
    assert document["next"] == ["trtbuild lock"]
    shown = locked.run("lock", "--check").stdout
    assert "out of date: trtbuild.lock" in shown and ENGINE in shown and "plan 000000000000" in shown
    assert locked("lock")["written"]
    assert lock_of(locked).steps == from_text(text).steps
    (locked.project / "trtbuild.lock").unlink()
    assert not locked("lock", "--check", expect=1)["existed"]
    assert not (locked.project / "trtbuild.lock").exists()


def test_a_remote_that_cannot_be_read_is_a_warning(trtbuild: CommandLine, tmp_path: Path) -> None:
    remotes = {"TRTBUILD_REMOTES": f"team=r:file://{tmp_path}/not/mounted"}
    empty_cache = replace(trtbuild, cache=tmp_path / "empty")
    document = empty_cache("lock", expect=1, environment=remotes)
    assert document["missing"]
    assert any("team" in text for text in document["warnings"])


def test_a_check_of_an_edited_model_lists_missing_steps_not_removed_steps(locked: CommandLine) -> None:
    edit(locked.project / "models" / "layer.py", "16", "16  # wide")
    document = locked("lock", "--check", expect=1)
    assert document["missing"][0]["id"] == "net/trace"
    assert document["differences"] == []
    assert document["next"] == ["trtbuild build", "trtbuild lock"]


def test_locking_one_model_keeps_the_others_and_locking_all_drops_removed_models(locked: CommandLine) -> None:
    edit(locked.project / "trtbuild.yaml", "models:\n", f"models:\n{TWIN}")
    net = lock_of(locked).models["net"]
    assert [entry["id"] for entry in locked("lock", expect=1)["missing"]] == ["twin/package"]
    locked("build")
    assert locked("lock", "twin")["written"]
    assert lock_of(locked).models["net"] == net
    assert lock_of(locked).models["twin"].steps["twin/trace"] == net.steps["net/trace"]
    edit(locked.project / "trtbuild.yaml", TWIN, "")
    document = locked("lock")
    assert list(lock_of(locked).models) == ["net"]
    assert {entry["change"] for entry in document["differences"] if entry["area"] == "step"} == {"removed"}


def test_rejects_a_lock_of_one_target_or_an_unknown_model(locked: CommandLine) -> None:
    document = locked("lock", "--target", "ada", expect=2)
    assert (document["schema"], document["ok"]) == ("trtbuild.locked/1", False)
    assert "all targets" in document["errors"][0]["text"]
    assert "'nett'" in locked("lock", "nett", expect=2)["errors"][0]["text"]


def test_an_unreadable_lock_is_an_error_and_lock_upgrade_replaces_it(locked: CommandLine) -> None:
    edit(locked.project / "trtbuild.lock", ' "platform"', '<<<<<<< HEAD\n "platform"')
    for command in ("build", "plan", "lock"):
        (error,) = locked(command, expect=2)["errors"]
        assert (error["type"], error["file"], error["line"]) == ("LockFileError", "trtbuild.lock", 3)
        assert "merge conflict" in error["text"]
    assert locked("lock", "--upgrade")["written"]
    assert locked("lock", "--check")["ok"]


# -- versions


def test_with_a_newer_toolchain_locked_results_are_hits_and_no_engine_is_built(
    locked: CommandLine, tmp_path: Path
) -> None:
    newer = install_versions(tmp_path / "site", **{"tensorrt-rtx": "99.0"})
    assert ran(locked("build", "--frozen", environment=newer)) == {}
    assert locked("lock", "--check", environment=newer)["ok"]
    upgraded = locked("plan", "--upgrade", environment=newer)
    assert step(upgraded, "net/partition")["verdict"] == "run"
    document = locked("lock", "--upgrade", environment=newer, expect=1)
    assert document["next"] == ["trtbuild build --upgrade", "trtbuild lock --upgrade"]

    edit(locked.project / "trtbuild.yaml", "    inputs:", "    builder: {optimization_level: 2}\n    inputs:")
    (error,) = locked("build", environment=newer, expect=2)["errors"]
    version = lock_of(locked).models["net"].targets["ada"].version
    assert error["type"] == "ToolchainMissing"
    assert f"trtbuild.lock requires tensorrt-rtx {version}; 99.0 is installed" in error["text"]
    assert f"pip install 'tensorrt-rtx=={version}'" in error["hint"]
    assert "trtbuild build --upgrade" in error["hint"]
    assert locked("plan", environment=newer, expect=2)["totals"]["engine"]["run"] == 1
    (locked.project / "trtbuild.lock").unlink()
    assert step(locked("plan", environment=newer), "net/partition")["verdict"] == "run"


def test_with_a_newer_torch_the_locked_trace_is_used_and_nothing_is_traced(locked: CommandLine, tmp_path: Path) -> None:
    newer = install_versions(tmp_path / "site", torch="99.0", numpy="99.0")
    document = locked("build", "--frozen", environment=newer)
    assert ran(document) == {}
    assert "trtbuild.lock names it" in step(document, "net/trace")["reason"]["text"]
    assert locked("lock", "--check", environment=newer)["ok"]

    edit(locked.project / "models" / "layer.py", "16", "17")
    (error,) = locked("build", environment=newer, expect=2)["errors"]
    torch = lock_of(locked).models["net"].versions["torch"]
    assert error["type"] == "EnvironmentFault"
    assert f"trtbuild.lock requires torch {torch} (installed: 99.0)" in error["text"]
    assert f"pip install 'torch=={torch}'" in error["hint"]
    assert "trtbuild build --upgrade" in error["hint"]
    changed = step(locked("plan", "--upgrade", environment=newer), "net/trace")["reason"]["changed"]
    assert ("versions.torch", torch, "99.0") in [(change["part"], change["was"], change["now"]) for change in changed]


def test_the_lock_does_not_apply_to_a_model_that_it_does_not_contain(locked: CommandLine, tmp_path: Path) -> None:
    newer = install_versions(tmp_path / "site", **{"tensorrt-rtx": "99.0"})
    edit(locked.project / "trtbuild.yaml", "models:\n", f"models:\n{TWIN}")
    plan = locked("plan", environment=newer)
    assert step(plan, ENGINE)["verdict"] == "hit"
    assert step(plan, "twin/partition")["verdict"] == "run"


def test_the_error_about_another_pinned_version_names_manifest_and_lock(locked: CommandLine) -> None:
    version = lock_of(locked).models["net"].targets["ada"].version
    edit(locked.project / "trtbuild.yaml", "{sm: 89}", f'{{sm: 89, version: "{version}"}}')
    assert ran(locked("build", "--frozen")) == {}
    edit(locked.project / "trtbuild.yaml", version, "98.0")
    (error,) = locked("build", expect=2)["errors"]
    assert (error["type"], error["file"]) == ("LockFileError", "trtbuild.yaml")
    text = (locked.project / "trtbuild.lock").read_text()
    line_number = next(number for number, line in enumerate(text.splitlines(), 1) if '"ada"' in line)
    assert f"pinned to tensorrt-rtx 98.0, and trtbuild.lock:{line_number} has {version}" in error["text"]
    assert step(locked("plan", "--upgrade", expect=2), "net/partition")["verdict"] == "run"


# -- builds use the locked results


def replace_engine(trtbuild: CommandLine) -> None:
    """Replace the engine's record by a valid record with another plan."""
    store = LocalStore(trtbuild.cache)
    key = step(trtbuild("plan"), ENGINE)["key"]
    record = store.get_record(key)
    assert record is not None
    store.put_record(replace(record, outputs={**record.outputs, "plan": store.put_bytes(b"another")}), replace=True)


def test_an_engine_that_differs_from_the_lock_is_built_again(locked: CommandLine) -> None:
    replace_engine(locked)
    planned = step(locked("plan"), ENGINE)
    assert planned["verdict"] == "run"
    assert planned["reason"]["code"] == "untrusted"
    assert planned["reason"]["text"] == "its plan differs from trtbuild.lock"
    assert "its plan differs from trtbuild.lock" in locked.run("why", ENGINE).stdout
    frozen = locked("build", "--frozen", expect=3)
    assert f"{ENGINE}: its plan differs from trtbuild.lock" in frozen["errors"][0]["text"]
    document = locked("build")
    assert ran(document) == {"engine": 1}
    assert document["warnings"] == []
    assert step(document, ENGINE)["outputs"]["plan"] == lock_of(locked).steps[ENGINE].outputs["plan"].to_json()
    assert ran(locked("build", "--frozen")) == {}


def test_frozen_refuses_cached_results_of_an_edited_model_until_they_are_locked(locked: CommandLine) -> None:
    edit(locked.project / "models" / "layer.py", "16", "17")
    assert ran(locked("build"))["engine"] == 1  # so the results of the edited model are hits
    for arguments in (("--target", "ada"), ("--until", "engine"), ()):
        (error,) = locked("build", "--frozen", *arguments, expect=3)["errors"]
        assert error["type"] == "FrozenError"
        assert "these results are not those of trtbuild.lock" in error["text"]
        assert ENGINE in error["text"]
    assert ran(locked("build", "--frozen", "--upgrade")) == {}  # --upgrade ignores the lock
    assert ran(locked("build", "--frozen", "--until", "convert")) == {}
    locked("lock")
    assert ran(locked("build", "--frozen")) == {}


def test_without_a_lock_an_engine_with_another_plan_is_used(trtbuild: CommandLine) -> None:
    replace_engine(trtbuild)
    assert step(trtbuild("plan"), ENGINE)["verdict"] == "hit"


def change_locked_plan(trtbuild: CommandLine, plan: Output) -> None:
    lock = lock_of(trtbuild)
    model = lock.models["net"]
    steps = {**model.steps, ENGINE: replace(model.steps[ENGINE], outputs={"plan": plan})}
    text = to_text(replace(lock, models={"net": replace(model, steps=steps)}))
    (trtbuild.project / "trtbuild.lock").write_text(text)


def test_a_build_warns_about_bytes_that_differ_from_the_lock(locked: CommandLine) -> None:
    change_locked_plan(locked, Output("0" * 64, 7))
    assert locked("build", "--frozen", expect=3)["errors"][0]["type"] == "FrozenError"
    document = locked("build")
    assert ran(document)["engine"] == 1
    (warning,) = document["warnings"]
    assert warning.startswith(f"{ENGINE}: its plan differs from trtbuild.lock")
    assert [entry["name"] for entry in locked("lock")["differences"]] == [ENGINE]
    assert ran(locked("build", "--frozen")) == {}


def test_a_null_build_compares_the_lock_file(trtbuild: CommandLine) -> None:
    def build() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **trtbuild.environment, "TRTBUILD_CACHE_DIR": str(trtbuild.cache)}
        command = [sys.executable, "-m", "trtbuild", "build"]
        return subprocess.run(
            command, cwd=trtbuild.project, env=environment, capture_output=True, text=True, timeout=120
        )

    snapshots = trtbuild.project / ".trtbuild" / "null"
    for _ in range(2):
        assert build().returncode == 0
    assert list(snapshots.iterdir())
    path = trtbuild.project / "trtbuild.lock"
    path.write_text("{}")
    assert build().returncode == 2
    path.unlink()
    trtbuild("lock")
    for _ in range(2):
        assert build().returncode == 0
    path.write_text("<<<<<<< HEAD\n")
    assert "merge conflict" in build().stderr


def test_a_depfile_names_the_lock(locked: CommandLine) -> None:
    locked("build", "--depfile", "net.d")
    assert "trtbuild.lock" in (locked.project / "net.d").read_text()


# -- collection


@pytest.fixture
def aged(locked: CommandLine) -> CommandLine:
    """A locked project in which all entries of the cache are one day old."""
    yesterday = time.time() - 86400
    for path in locked.cache.rglob("*"):
        if path.is_file():
            os.utime(path, (yesterday, yesterday))
    return locked


def kept_because(trtbuild: CommandLine, pinned: frozenset[str]) -> dict[str, Any]:
    """Collect with size limit 0 and these pinned keys. Return reason → number of kept entries."""
    return dict(collect(LocalStore(trtbuild.cache), max_size=0, pinned=pinned).kept_because)


def fresh_checkout(trtbuild: CommandLine) -> None:
    for folder in (".trtbuild", "dist"):
        shutil.rmtree(trtbuild.project / folder)


def test_locked_results_are_kept_and_stay_hits(aged: CommandLine) -> None:
    pinned = pinned_keys(aged.project, store=LocalStore(aged.cache))
    assert set(lock_of(aged).by_key) < pinned  # the links that lead to the record of the trace are pinned, too
    reasons = kept_because(aged, pinned)
    assert reasons["pinned"] > 6  # six steps, and the links of the trace
    fresh_checkout(aged)
    assert ran(aged("build", "--frozen")) == {}


def test_results_that_are_not_pinned_are_removed(aged: CommandLine) -> None:
    assert "pinned" not in kept_because(aged, frozenset())
    fresh_checkout(aged)
    assert aged("build", "--frozen", expect=3)


def test_a_lock_elsewhere_pins_too_and_a_missing_lock_is_an_error(aged: CommandLine, tmp_path: Path) -> None:
    store = LocalStore(aged.cache)
    pinned = pinned_keys(aged.project, store=store)
    moved = (aged.project / "trtbuild.lock").rename(tmp_path / "release.lock")
    assert pinned_keys(aged.project, store=store) == frozenset()
    assert pinned_keys(aged.project, moved, store) == pinned
    with pytest.raises(UsageError, match="there is no lock file"):
        pinned_keys(aged.project, tmp_path / "nothing.lock", store)


class _DownStore(LocalStore):
    """A store that cannot read the records of one stage."""

    def __init__(self, root: Path, stage: str) -> None:
        super().__init__(root)
        self._stage = stage

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        record = super().get_record(key, wanted)
        if record is not None and record.recipe.stage == self._stage:
            raise RemoteDown("the share is gone")
        return record


@pytest.mark.parametrize("stage", ["trace", "trace-link"])
def test_a_trace_or_a_link_that_cannot_be_read_is_an_error(aged: CommandLine, stage: str) -> None:
    with pytest.raises(RemoteDown, match="the share is gone"):
        pinned_keys(aged.project, store=_DownStore(aged.cache, stage))


def test_keys_without_records_are_pinned_too(aged: CommandLine, tmp_path: Path) -> None:
    assert pinned_keys(aged.project, store=LocalStore(tmp_path / "empty")) >= frozenset(lock_of(aged).by_key)


# -- other machines


def test_locked_builds_import_neither_torch_nor_a_toolchain(trtbuild: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'tensorrt', 'tensorrt_rtx', 'onnx', 'numpy'):\n"
        "            raise ImportError(f'{name} must not be imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    blocked = {"PYTHONPATH": str(tmp_path)}
    assert trtbuild("lock", environment=blocked)["written"]
    assert trtbuild("lock", "--check", environment=blocked)["ok"]
    assert ran(trtbuild("build", "--frozen", environment=blocked)) == {}


def test_the_lock_file_is_json_and_its_keys_lead_to_records(locked: CommandLine) -> None:
    lock = json.loads((locked.project / "trtbuild.lock").read_text())
    assert lock["schema"] == "trtbuild.lock/1"
    record = LocalStore(locked.cache).get_record(lock["models"]["net"]["steps"][ENGINE]["key"])
    assert isinstance(record, Record)
    assert record.outputs["plan"].to_json() == lock["models"]["net"]["steps"][ENGINE]["plan"]


def test_cache_gc_keeps_locked_results(aged: CommandLine) -> None:
    document = aged("cache", "gc", "--max-size", "0B")
    assert document["kept_because"]["pinned"] > 6  # six steps, and the links of the trace
    fresh_checkout(aged)
    assert ran(aged("build", "--frozen")) == {}
