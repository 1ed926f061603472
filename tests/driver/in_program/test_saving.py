"""The packages that `trtbuild.save` writes, and the modules that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from trtbuild import Input
from trtbuild.errors import UsageError

ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))


def content(root: Path) -> dict[Path, bytes]:
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def made(compiled: Callable[..., Any], net: torch.nn.Module) -> Any:
    return compiled(net, [ROWS])


def test_a_package_is_written_from_the_cache_and_again_from_a_package(made: Any, tmp_path: Path) -> None:
    first = made.save(tmp_path / "first")
    with trtbuild.load(first, device="cpu") as loaded:
        second = trtbuild.save(loaded, tmp_path / "second")
        trtbuild.save(loaded, tmp_path / "loaded.pt2")
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (first, second)
    ]
    assert files[0] == files[1]
    assert (tmp_path / "loaded.pt2").is_file()


def test_of_a_package_that_is_replaced_nothing_stays(made: Any, compiled: Callable[..., Any], tmp_path: Path) -> None:
    place, alone = tmp_path / "place", tmp_path / "alone"
    made.save(place)
    (place / "NOTES").write_text("somebody's own")
    before = set(content(place))
    other = compiled(torch.nn.Linear(3, 2).eval(), [Input((4, 3))])
    other.save(place)
    other.save(alone)
    assert before - set(content(alone)) > {Path("NOTES")}  # there was something to be removed
    assert content(place) == content(alone) | {Path("NOTES"): b"somebody's own"}


@pytest.mark.parametrize("path", ["", 3, None])
def test_rejects_what_is_no_path(made: Any, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would be the working directory."""
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    with pytest.raises(UsageError, match="path must be a path"):
        made.save(path)
    assert content(tmp_path) == before


def test_the_format_is_said_or_follows_from_the_name(made: Any, tmp_path: Path) -> None:
    made.save(tmp_path / "model.ep", output_format="exported_program")
    extra = {"trtbuild.json": ""}
    torch.export.load(tmp_path / "model.ep", extra_files=extra)
    assert '"schema": "trtbuild.pt2/1"' in str(extra["trtbuild.json"])


@pytest.mark.parametrize("name", ["model.ep", "model.ts", "model.pt"])
def test_no_directory_has_the_name_of_a_file(made: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="has the ending of a file") as caught:
        made.save(tmp_path / name)
    assert "model.pt2" in str(caught.value.hint)
    assert not (tmp_path / name).exists()
    made.save(tmp_path / name, output_format="package")
    with trtbuild.load(tmp_path / name, device="cpu") as loaded:
        assert loaded.is_reference
    made.save(tmp_path / name)  # it is a package, so it is replaced
    made.save(tmp_path / "v1.5")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output_format": "onnx"}, "there is no output_format 'onnx'"),
        ({"target": "sm89"}, "a package has all its targets"),
        ({"output_format": "pt2", "target": "ada"}, "the package has no target 'ada'"),
    ],
)
def test_rejects_what_cannot_be_written(made: Any, tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made.save(tmp_path / "place", **options)


def test_rejects_modules_of_others_and_files_in_the_way(made: Any, net: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trtbuild cannot save a Net"):
        trtbuild.save(net, tmp_path / "place")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, but a package is a directory"):
        made.save(tmp_path / "file")
