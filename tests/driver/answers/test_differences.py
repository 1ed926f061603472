"""`trtbuild diff`: differences between packages and models, after real builds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.projects import ADA_AND_AMPERE, BLOCKS, WITH_WEIGHTS, copy_project, edit, write_weights
from trtbuild.driver.answers.differences import differences
from trtbuild.driver.answers.package_facts import PackageFacts
from trtbuild.store.trust.signing import Signer


def write_project(folder: Path) -> None:
    """Write the project of the tests. Its second target, `ampere`, is not used by the model."""
    copy_project("blocks", folder, WITH_WEIGHTS, ADA_AND_AMPERE[0])
    write_weights(folder / "net.safetensors", BLOCKS)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("diff")
    trtbuild = CommandLine(base / "project", base / "cache")
    write_project(trtbuild.project)
    trtbuild("build")
    shutil.copytree(trtbuild.project / "dist/net", trtbuild.project / "old")
    return trtbuild


@pytest.fixture
def trtbuild(built: CommandLine) -> Iterator[CommandLine]:
    """The built project. After the test, its manifest, sources and weights are as before."""
    yield built
    write_project(built.project)


def changes_by_area(document: Any) -> dict[str, list[str]]:
    """Area → the changes in it, such as ``changed rows.x.max``."""
    changes: dict[str, list[str]] = {}
    for entry in document["differences"]:
        changes.setdefault(entry["area"], []).append(f"{entry['change']} {entry['name']}")
    return changes


@pytest.mark.parametrize("sides", [("old", "dist/net"), ("old", "net"), ("net", "net")])
def test_equal_sides_exit_with_0(trtbuild: CommandLine, sides: tuple[str, str]) -> None:
    document = trtbuild("diff", *sides)
    assert document["schema"] == "trtbuild.diff/1"
    assert document["ok"]
    assert document["same"]
    assert document["differences"] == []
    assert document["a"]["known_from"] == document["b"]["known_from"] == "recipes"
    assert "no differences" in trtbuild.run("diff", *sides).stdout


def test_declared_ranges_are_compared_and_a_shape_that_only_one_side_has_is_ignored() -> None:
    def facts(**fields: Any) -> PackageFacts:
        inputs = {"ids": {"dtype": "int64", "keyword": False, **fields}}
        return PackageFacts("net", "package", "net", "index", inputs, {}, {}, {}, "float32")

    def changes(was: PackageFacts, now: PackageFacts) -> list[tuple[str, str, Any, Any]]:
        return [(entry.change, entry.name, entry.was, entry.now) for entry in differences(was, now)]

    unlimited, limited, with_traced_shape = facts(), facts(range=[0, 9]), facts(shape=[["sym", 0]])
    assert changes(unlimited, limited) == [("added", "ids.range", None, [0, 9])]
    assert changes(limited, unlimited) == [("removed", "ids.range", [0, 9], None)]
    assert changes(limited, facts(range=[0, 5])) == [("changed", "ids.range", [0, 9], [0, 5])]
    assert changes(limited, limited) == []
    assert changes(unlimited, with_traced_shape) == changes(with_traced_shape, unlimited) == []


def test_after_a_fine_tune_the_changed_weight_and_its_engine_are_named(trtbuild: CommandLine) -> None:
    write_weights(trtbuild.project / "net.safetensors", BLOCKS, changed="layers.1.linear.bias")
    document = trtbuild("diff", "old", "net", expect=1)
    assert changes_by_area(document) == {
        "weights": ["changed layers.1.linear.bias.sha256"],
        "engines": ["changed layers.1@ada"],
    }
    (engine,) = [entry for entry in document["differences"] if entry["area"] == "engines"]
    assert [part["part"].split(".")[0] for part in engine["parts"]] == ["weights"]


def test_a_builder_setting_is_named_in_each_engine(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "optimization_level: 3", "optimization_level: 1")
    document = trtbuild("diff", "dist/net", "net", expect=1)
    assert changes_by_area(document) == {"engines": [f"changed layers.{number}@ada" for number in range(3)]}
    for engine in document["differences"]:
        assert engine["parts"] == [{"part": "settings.optimization_level", "was": "3", "now": "1"}]


def test_fields_of_the_manifest_are_compared_without_a_build(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "max: [8, 8]", "max: [16, 8]")
    edit(trtbuild.project / "trtbuild.yaml", "[ada]", "[ada, ampere]\n    precision: float16")
    document = trtbuild("diff", "old", "net", expect=1)
    assert document["b"]["known_from"] == "manifest"
    changes = changes_by_area(document)
    assert changes["profiles"] == ["changed rows.x.max"]
    assert changes["dims"] == ["changed x_0.max"]
    assert changes["precision"] == ["changed precision"]
    assert changes["targets"] == ["added ampere"]
    assert changes["unknown"] == ["changed net/trace"]
    assert not {"engines", "partitions"} & changes.keys()


def test_an_edited_source_is_named_although_nothing_has_run(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models/layer.py", "torch.relu", "torch.sigmoid")
    changes = changes_by_area(trtbuild("diff", "old", "net", expect=1))
    assert changes == {"source": ["changed file:models/layer.py"], "unknown": ["changed net/trace"]}
    assert "net/trace has to run" in trtbuild.run("diff", "old", "net").stdout
    assert trtbuild("diff", "net", "net")["same"]


def test_another_graph_is_a_changed_partition(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models/net.py", "(1.0, 1.0, 1.0)", "(2.0, 1.0, 1.0)")
    trtbuild("build")
    document = trtbuild("diff", "old", "dist/net", expect=1)
    changes = changes_by_area(document)
    assert changes["partitions"] == ["changed layers.0.graph"]
    assert changes["engines"] == ["changed layers.0@ada"]
    assert "weights" not in changes
    write_project(trtbuild.project)
    trtbuild("build")  # the next tests need the first package again


def test_without_records_only_the_indexes_are_compared(trtbuild: CommandLine, tmp_path: Path) -> None:
    other = CommandLine(trtbuild.project, tmp_path / "another-cache")
    assert other("diff", "old", "dist/net")["a"]["known_from"] == "index"
    index = json.loads((trtbuild.project / "old/index.json").read_text())
    path = index["targets"]["ada"]["engines"]["layers.0"]
    index["files"][path]["sha256"] = "0" * 64
    shutil.copytree(trtbuild.project / "old", tmp_path / "edited")
    (tmp_path / "edited/index.json").write_text(json.dumps(index))
    document = other("diff", "old", str(tmp_path / "edited"), expect=1)
    (entry,) = document["differences"]
    assert (entry["area"], entry["name"], entry["what"], entry["parts"]) == ("engines", "layers.0@ada", "plan", None)
    assert "index alone" in other.run("diff", "old", str(tmp_path / "edited")).stdout


def test_records_that_are_not_trusted_count_as_missing(trtbuild: CommandLine) -> None:
    trusting = {"TRTBUILD_TRUSTED_KEYS": str(Signer("release", b"r" * 32).trusted)}
    document = trtbuild("diff", "old", "dist/net", environment=trusting)
    assert (document["same"], document["a"]["known_from"]) == (True, "index")
    # without the trusted keys, the records are used
    assert trtbuild("diff", "old", "dist/net")["a"]["known_from"] == "recipes"


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("old", "nte"), "did you mean 'net'"),
        (("./.trtbuild", "net"), "no index.json"),
        (("broken", "net"), "not JSON"),
        (("strange", "net"), "has the format trtbuild.package/9"),
    ],
)
def test_sides_that_cannot_be_read_exit_with_2(trtbuild: CommandLine, sides: tuple[str, str], message: str) -> None:
    for name, text in (("broken", "{"), ("strange", '{"schema": "trtbuild.package/9"}')):
        (trtbuild.project / name).mkdir(exist_ok=True)
        (trtbuild.project / name / "index.json").write_text(text)
    process = trtbuild.run("diff", *sides)
    assert process.returncode == 2
    assert message in process.stderr
