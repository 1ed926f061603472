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
def compiled_net(compiled: Callable[..., Any], net: torch.nn.Module) -> Any:
    return compiled(net, [ROWS])


def test_packages_from_the_cache_and_from_a_package_are_equal(compiled_net: Any, tmp_path: Path) -> None:
    first = compiled_net.save(tmp_path / "first")
    with trtbuild.load(first, device="cpu") as loaded:
        second = trtbuild.save(loaded, tmp_path / "second")
        trtbuild.save(loaded, tmp_path / "loaded.pt2")
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (first, second)
    ]
    assert files[0] == files[1]
    assert (tmp_path / "loaded.pt2").is_file()


def test_replacing_a_package_removes_its_files_and_keeps_other_files(
    compiled_net: Any, compiled: Callable[..., Any], tmp_path: Path
) -> None:
    replaced, separate = tmp_path / "replaced", tmp_path / "separate"
    compiled_net.save(replaced)
    (replaced / "NOTES").write_text("a file of the user")
    before = set(content(replaced))
    other = compiled(torch.nn.Linear(3, 2).eval(), [Input((4, 3))])
    other.save(replaced)
    other.save(separate)
    assert before - set(content(separate)) > {Path("NOTES")}  # replacing had to remove files
    assert content(replaced) == content(separate) | {Path("NOTES"): b"a file of the user"}


@pytest.mark.parametrize("path", ["", 3, None])
def test_rejects_invalid_paths(compiled_net: Any, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path would be the working directory."""
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    with pytest.raises(UsageError, match="path must be a path"):
        compiled_net.save(path)
    assert content(tmp_path) == before


def test_the_output_format_overrides_the_ending_of_the_path(compiled_net: Any, tmp_path: Path) -> None:
    compiled_net.save(tmp_path / "model.ep", output_format="exported_program")
    extra = {"trtbuild.json": ""}
    torch.export.load(tmp_path / "model.ep", extra_files=extra)
    assert '"schema": "trtbuild.pt2/1"' in str(extra["trtbuild.json"])


@pytest.mark.parametrize("name", ["model.ep", "model.ts", "model.pt"])
def test_rejects_a_directory_with_the_ending_of_a_file(compiled_net: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="has the ending of a file") as caught:
        compiled_net.save(tmp_path / name)
    assert "model.pt2" in str(caught.value.hint)
    assert not (tmp_path / name).exists()
    compiled_net.save(tmp_path / name, output_format="package")
    with trtbuild.load(tmp_path / name, device="cpu") as loaded:
        assert loaded.is_reference
    compiled_net.save(tmp_path / name)  # it is a package already, so it is replaced
    compiled_net.save(tmp_path / "v1.5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_format": "onnx"}, "there is no output_format 'onnx'"),
        ({"target": "sm89"}, "a package has all its targets"),
        ({"output_format": "pt2", "target": "ada"}, "the package has no target 'ada'"),
    ],
)
def test_rejects_invalid_options(compiled_net: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled_net.save(tmp_path / "place", **options)


def test_rejects_other_modules_and_paths_of_files(compiled_net: Any, net: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trtbuild cannot save a Net"):
        trtbuild.save(net, tmp_path / "place")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, but a package is a directory"):
        compiled_net.save(tmp_path / "file")
