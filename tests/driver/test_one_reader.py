"""A package that `trtbuild.load` refuses is refused by every command, with the same message.

`inspect` shows no layers if ``names.json`` has a wrong digest.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trtbuild
from tests.conftest import CommandLine
from tests.driver.conftest import Small
from trtbuild.driver.answers.differences import diff
from trtbuild.driver.building.progress.events import Watchers
from trtbuild.driver.inspection import inspect
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.running.bench import bench
from trtbuild.driver.running.run import run
from trtbuild.driver.verification.document import Options
from trtbuild.driver.verification.packages import verify_packages
from trtbuild.driver.workers.stopwatch import Budget
from trtbuild.errors import PackageDamaged, PackageError, PackageTooNew, TrtbuildError

Edit = Callable[[Any], object]


def _file_elsewhere(index: Any) -> None:
    index["files"]["../../etc/passwd"] = {"sha256": "0" * 64, "size": 1}


def _plan_elsewhere(index: Any) -> None:
    index["targets"]["ada"]["engines"]["model"] = "../../etc/passwd"


def _absolute_path(index: Any) -> None:
    index["files"]["/etc/passwd"] = {"sha256": "0" * 64, "size": 1}


def _negative_size(index: Any) -> None:
    index["files"]["names.json"]["size"] = -1


def _negative_profile(index: Any) -> None:
    index["profiles"][0]["shapes"]["x"]["min"][0] = -4


def _negative_dim(index: Any) -> None:
    index["dims"][0]["min"] = -1


def _no_files(index: Any) -> None:
    del index["files"]


def _path_as_digest(index: Any) -> None:
    index["files"]["names.json"]["sha256"] = "../" * 20


def _newer_schema(index: Any) -> None:
    index["schema"] = "trtbuild.package/4"


def _other_schema(index: Any) -> None:
    index["schema"] = "someone/1"


EDITS: dict[Edit, type[PackageError]] = {
    _file_elsewhere: PackageDamaged,
    _plan_elsewhere: PackageDamaged,
    _absolute_path: PackageDamaged,
    _negative_size: PackageDamaged,
    _negative_profile: PackageDamaged,
    _negative_dim: PackageDamaged,
    _no_files: PackageDamaged,
    _path_as_digest: PackageDamaged,
    _newer_schema: PackageTooNew,
    _other_schema: PackageDamaged,
}


def commands(project: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name and a call of each command that reads the package ``p`` of a project, except `verify`."""
    request = Request(project)
    yield "inspect", lambda: inspect(request, "p")
    yield "run", lambda: run(request, "p", device="cpu")
    yield "bench", lambda: bench(request, "p", budget=Budget(0.0, 0.0))
    yield "diff", lambda: diff(request, "p", "whole")
    yield "diff the other way", lambda: diff(request, "whole", "p")


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_every_command_rejects_a_package_that_load_rejects(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Edit
) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(small.package, tmp_path / "p")
    shutil.copytree(small.package, tmp_path / "whole")
    path = tmp_path / "p" / "index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))
    with pytest.raises(EDITS[edit]) as caught:
        trtbuild.load(tmp_path / "p", device="cpu")
    for command, call in commands(tmp_path):
        with pytest.raises(TrtbuildError) as refused:
            call()
        assert (refused.value.text, refused.value.hint) == (caught.value.text, caught.value.hint), command
    verified = verify_packages([tmp_path / "p"], (), Options(), Watchers([]))
    assert not verified.ok
    assert [error.text for error in verified.errors] == [caught.value.text]


def test_diff_of_a_damaged_package_is_an_error_not_a_difference(small: Small, tmp_path: Path) -> None:
    shutil.copytree(small.package, tmp_path / "p")
    (tmp_path / "p" / "index.json").write_text("{}")
    process = CommandLine(tmp_path, tmp_path / "cache").run("diff", "p", "p")
    assert process.returncode == 2
    assert "is not the index of a package" in process.stderr


def test_names_with_a_wrong_digest_are_not_shown(small: Small, tmp_path: Path) -> None:
    shutil.copytree(small.package, tmp_path / "p")
    names = tmp_path / "p" / "names.json"
    text = names.read_text()
    names.write_text(re.sub("hidden", "HIDDEN", text))
    assert names.read_text() != text
    command_line = CommandLine(tmp_path, tmp_path / "cache")
    assert all(engine["layers"] == [] for engine in command_line("inspect", "p")["engines"])
    names.write_text(text)
    assert all(engine["layers"] for engine in command_line("inspect", "p")["engines"])
