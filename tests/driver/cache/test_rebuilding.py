"""`cache verify --rebuild` builds engines again and compares them with the cache. Some tests forge an engine."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import click
import pytest

from tests.conftest import CommandLine, step
from tests.projects import copy_project, edit
from trtbuild.cli.screens import rebuilds
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.codec import decode
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.cache.documents import Rebuilt
from trtbuild.driver.cache.rebuilding import parse_share, rebuild
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError
from trtbuild.store.local.local import LocalStore
from trtbuild.toolchain.libraries import table


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("rebuilding")
    # a target that no model builds at first, because its toolchain is not installed
    hopper = '  hopper: {sm: 90, toolchain: tensorrt, version: "10.0.0"}'
    project = copy_project("blocks", base / "project", ("  ada: {sm: 89}\n", f"  ada: {{sm: 89}}\n{hopper}\n"))
    trtbuild = CommandLine(project, base / "cache", {"TRTBUILD_REMOTES": ""})
    document = trtbuild("build")
    assert document["totals"]["engine"]["run"] >= 2
    return trtbuild


@pytest.fixture
def trtbuild(built: CommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the project and its cache. A test may damage the copy."""
    shutil.copytree(built.project, tmp_path / "project")
    shutil.copytree(built.cache, tmp_path / "cache")
    return CommandLine(tmp_path / "project", tmp_path / "cache", built.environment)


def entries(cache: Path) -> list[Path]:
    return sorted([*cache.glob("ac/??/*"), *cache.glob("cas/??/*")])


def engine_ids(trtbuild: CommandLine) -> list[str]:
    return sorted(each["id"] for each in trtbuild("plan")["steps"] if each["stage"] == "engine")


def test_engines_that_are_built_again_equal_those_in_the_cache(built: CommandLine) -> None:
    before = entries(built.cache)
    document = built("cache", "verify", "--rebuild", "100%", "--seed", "7")
    count = len(engine_ids(built))
    assert document["ok"] and document["damage"] == []
    assert document["rebuilt"] == {
        "seed": 7,
        "engines": count,
        "sampled": count,
        "same": count,
        "different": [],
        "unchecked": [],
    }
    assert entries(built.cache) == before
    assert click.unstyle(rebuilds.rebuild_lines(decode(Rebuilt, document["rebuilt"]))[0]).startswith(
        f"equal: {count} of {count} engines built again"
    )


def test_a_sample_has_at_least_one_engine(built: CommandLine) -> None:
    document = built("cache", "verify", "--rebuild", "0.1%")
    assert (document["rebuilt"]["sampled"], document["rebuilt"]["same"]) == (1, 1)


def test_without_the_option_nothing_is_rebuilt(built: CommandLine) -> None:
    assert "rebuilt" not in built("cache", "verify")


def forge(trtbuild: CommandLine, identifier: str) -> tuple[Record, Record]:
    """Replace an engine's record by a valid record with another plan. Return the true and the forged record."""
    key = step(trtbuild("plan"), identifier)["key"]
    store = LocalStore(trtbuild.cache)
    honest = store.get_record(key)
    assert honest is not None
    plan = store.put_bytes(store.get_bytes(honest.outputs["plan"].sha256)[:-1] + b"!")
    outputs = {**honest.outputs, "plan": plan}
    forged = dataclasses.replace(honest, outputs=outputs, provenance={**honest.provenance, "builder": "mallory@evil"})
    store.put_record(forged, replace=True)
    return honest, forged


def test_a_forged_record_is_reported_and_quarantined(trtbuild: CommandLine) -> None:
    name = engine_ids(trtbuild)[0]
    honest, forged = forge(trtbuild, name)
    assert trtbuild("cache", "verify")["ok"]  # every digest is right, so reading the cache finds no damage
    document = trtbuild("cache", "verify", "--rebuild", "100%", expect=1)
    assert not document["ok"] and document["damage"] == []
    (difference,) = document["rebuilt"]["different"]
    assert difference == {
        "step": name,
        "key": honest.recipe.key,
        "recorded": forged.outputs["plan"].sha256,
        "rebuilt": honest.outputs["plan"].sha256,
        "source": "local",
        "quarantined": True,
        "remotes": [],
        "builder": "mallory@evil",
        "signed_by": [],
    }
    shown = click.unstyle("\n".join(rebuilds.rebuild_lines(decode(Rebuilt, document["rebuilt"]))))
    assert name in shown and "mallory@evil" in shown and "signed by     nobody" in shown
    assert LocalStore(trtbuild.cache).get_record(honest.recipe.key) is None
    rebuilt = trtbuild("build")
    assert step(rebuilt, name)["verdict"] == "run"
    assert step(rebuilt, name)["outputs"]["plan"]["sha256"] == honest.outputs["plan"].sha256
    assert trtbuild("cache", "verify", "--rebuild", "100%")["rebuilt"]["different"] == []


def test_a_forged_engine_in_a_package_is_replaced(trtbuild: CommandLine) -> None:
    name = engine_ids(trtbuild)[0]
    plans = sorted(trtbuild.project.glob("dist/net/engines/ada/*.plan"))
    before = [plan.read_bytes() for plan in plans]
    forge(trtbuild, name)
    trtbuild("build")
    assert [plan.read_bytes() for plan in plans] != before
    assert trtbuild("build")["ok"]  # this build has nothing to do
    trtbuild("cache", "verify", "--rebuild", "100%", expect=1)
    trtbuild("build")
    assert [plan.read_bytes() for plan in plans] == before


def test_the_remote_of_a_forged_record_is_reported(trtbuild: CommandLine, tmp_path: Path) -> None:
    name = engine_ids(trtbuild)[0]
    honest, _ = forge(trtbuild, name)
    (tmp_path / "share").mkdir()
    remote = {"TRTBUILD_REMOTES": f"team=rw:file://{tmp_path / 'share'}"}
    trtbuild("build")  # the package has the forged engine
    trtbuild("cache", "push", environment=remote)
    shutil.rmtree(trtbuild.cache)
    document = trtbuild("cache", "verify", "--rebuild", "100%", environment=remote, expect=1)
    (difference,) = document["rebuilt"]["different"]
    assert (difference["step"], difference["source"], difference["remotes"]) == (name, "team", ["team"])
    shown = click.unstyle("\n".join(rebuilds.rebuild_lines(decode(Rebuilt, document["rebuilt"]))))
    assert f"remove ac/{honest.recipe.key} from remote team" in shown


def test_engines_that_cannot_be_checked_are_counted_with_the_reason(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "targets: [ada]", "targets: [ada, hopper]")
    rebuilt = trtbuild("cache", "verify", "--rebuild", "1%")["rebuilt"]
    assert rebuilt["same"] == 1
    assert {each["reason"] for each in rebuilt["unchecked"]} == {"it is not in the cache"}
    assert click.unstyle(rebuilds.rebuild_lines(decode(Rebuilt, rebuilt))[-1]).endswith(
        "not checked: it is not in the cache"
    )


def test_an_engine_with_missing_inputs_is_not_checked(trtbuild: CommandLine) -> None:
    name = engine_ids(trtbuild)[0]
    store = LocalStore(trtbuild.cache)
    record = store.get_record(step(trtbuild("plan"), name)["key"])
    assert record is not None
    onnx = str(dict(record.recipe.parts)["onnx"])
    (store.root / "cas" / onnx[:2] / onnx).unlink()
    # the exit status is 1, because the record of the convert step lacks a blob
    rebuilt = trtbuild("cache", "verify", "--rebuild", "100%", expect=1)["rebuilt"]
    assert name in {each["step"] for each in rebuilt["unchecked"]}


def test_a_message_says_that_nothing_was_compared() -> None:
    rebuilt = {"seed": 1, "engines": 0, "sampled": 0, "same": 0, "different": [], "unchecked": []}
    assert click.unstyle(rebuilds.rebuild_lines(decode(Rebuilt, rebuilt))[0]).startswith("nothing could be compared")


def test_a_share_is_a_percentage() -> None:
    assert parse_share("10%") == 0.1
    assert parse_share(" 0.5 % ") == 0.005
    for text in ("10", "0%", "101%", "-1%", "all", "nan%"):
        with pytest.raises(UsageError, match="is not a percentage"):
            parse_share(text)


def test_engines_of_toolchains_that_are_not_reproducible_are_not_checked(
    trtbuild: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(trtbuild.cache))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    assert table.FLAVOURS["tensorrt-rtx"].reproducible and not table.FLAVOURS["tensorrt"].reproducible
    flavours = {
        **table.FLAVOURS,
        "tensorrt-rtx": dataclasses.replace(table.FLAVOURS["tensorrt-rtx"], reproducible=False),
    }
    monkeypatch.setattr(table, "FLAVOURS", flavours)
    result = rebuild(Request(trtbuild.project), share=1.0, seed=1, watcher=Watcher())
    assert (result.engines, result.sampled, result.same) == (0, 0, 0)
    assert {each.reason for each in result.unchecked} == {"tensorrt-rtx does not give the same bytes twice"}


def test_an_engine_of_another_toolchain_version_is_not_checked(
    trtbuild: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = table.installed_version("tensorrt-rtx")
    edit(trtbuild.project / "trtbuild.yaml", "ada: {sm: 89}", f'ada: {{sm: 89, version: "{version}"}}')
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(trtbuild.cache))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    monkeypatch.setattr(table, "installed_version", lambda toolchain: "9.9.9")
    result = rebuild(Request(trtbuild.project), share=1.0, seed=1, watcher=Watcher())
    (reason,) = {each.reason for each in result.unchecked}
    assert reason == f"it was built by tensorrt-rtx {version}, and 9.9.9 is installed here"
