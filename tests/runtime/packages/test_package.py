"""Each file of a package is verified when it is read, unless `verify` is False. Only the necessary files are read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import trtbuild
from tests.runtime.conftest import Built, Inputs
from trtbuild.core.packages.provenance import Provenance, document, to_bytes
from trtbuild.errors import PackageDamaged, PackageMissing, PackageTooNew
from trtbuild.runtime.calls.loaded import needed_files
from trtbuild.runtime.packages.package import open_package


def test_returns_the_same_bytes_that_were_verified(package: Path) -> None:
    opened = open_package(package)
    names = needed_files(opened, None)
    files = opened.read(names)
    for name, data in files.items():
        assert hashlib.sha256(data).hexdigest() == opened.index.files[name].sha256
        with open(package / name, "r+b") as file:  # writes into the same file
            file.write(b"\xff" * len(data))
        assert hashlib.sha256(data).hexdigest() == opened.index.files[name].sha256
    assert opened.digest == hashlib.sha256((package / "index.json").read_bytes()).hexdigest()


def test_a_loaded_package_runs_after_its_removal(package: Path, built: Built, inputs: Inputs) -> None:
    loaded = trtbuild.load(package, device="cpu")
    shutil.rmtree(package)
    image, scale = inputs()
    torch.testing.assert_close(loaded.module()(image, scale=scale)["list"], built.eager()(image, scale=scale)["list"])


def test_reads_only_the_files_that_are_needed(package: Path, inputs: Inputs) -> None:
    """The reference program runs even if the engines and the table of names are missing."""
    shutil.rmtree(package / "engines")
    (package / "names.json").unlink()
    image, scale = inputs()
    trtbuild.load(package, device="cpu").module()(image, scale=scale)
    opened = open_package(package)
    ada = set(needed_files(opened, opened.index.targets["ada"]))
    blackwell = set(needed_files(opened, opened.index.targets["blackwell"]))
    assert {name for name in ada if name.startswith("engines/")} == {
        "engines/ada/p0.plan",
        "engines/ada/p2.plan",
    }
    assert ada - blackwell == {name for name in ada if name.startswith("engines/")}
    torch_partition = next(part for part in opened.index.targets["ada"].partitions.partitions if part.kind == "torch")
    assert {name for name in ada if name.startswith("torch/")} == {
        opened.index.targets["ada"].programs[torch_partition.graph]
    }
    assert not any(name.startswith("weights/") for name in ada)


def _program(package: Path) -> Path:
    return sorted((package / "torch").iterdir())[0]


def _truncate(package: Path) -> str:
    os.truncate(_program(package), _program(package).stat().st_size - 1)
    return "is truncated: it has"


def _empty(package: Path) -> str:
    os.truncate(_program(package), 0)
    return "is truncated: it has 0 bytes"


def _extend(package: Path) -> str:
    with open(_program(package), "ab") as file:
        file.write(b"x")
    return "is altered: it has"


def _alter(package: Path) -> str:
    data = bytearray(_program(package).read_bytes())
    data[len(data) // 2] ^= 1
    _program(package).write_bytes(data)
    return "is altered: its SHA-256 is"


def _alter_a_weight(package: Path) -> str:
    path = sorted((package / "weights").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return "is altered: its SHA-256 is"


def _remove(package: Path) -> str:
    _program(package).unlink()
    return "is missing, but the index contains it"


def _replace_by_a_directory(package: Path) -> str:
    path = _program(package)
    path.unlink()
    path.mkdir()
    return "cannot be read: Is a directory"


def _truncate_the_index(package: Path) -> str:
    os.truncate(package / "index.json", 1000)
    return "index.json is not JSON: the package is truncated or altered"


def _replace_the_index(package: Path) -> str:
    (package / "index.json").write_text('{"schema": "something"}')
    return "is not the index of a package"


DAMAGES: list[Callable[[Path], str]] = [
    _truncate,
    _empty,
    _extend,
    _alter,
    _alter_a_weight,
    _remove,
    _replace_by_a_directory,
    _truncate_the_index,
    _replace_the_index,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_rejects_a_damaged_package_before_it_reads_a_program(
    damage: Callable[[Path], str], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    text = damage(package)
    assert before != {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    monkeypatch.setattr(torch.export, "load", lambda *_, **__: pytest.fail("a program was read"))
    with pytest.raises(PackageDamaged) as raised:
        trtbuild.load(package, device="cpu")
    assert text in str(raised.value)
    assert raised.value.hint == "build the package again, or copy it again from an undamaged source"


def test_rejects_a_path_that_leads_out_of_the_package(package: Path) -> None:
    index = json.loads((package / "index.json").read_bytes())
    for name in ("../outside", "/etc/passwd", "torch/../../x", "a\\b", "C:x", "", "a//b", "a\0b"):
        changed = {**index, "files": {**index["files"], name: {"sha256": "0" * 64, "size": 1}}}
        (package / "index.json").write_text(json.dumps(changed))
        with pytest.raises(PackageDamaged, match="is not a path inside a package"):
            open_package(package)


def test_rejects_a_newer_format(package: Path) -> None:
    index = json.loads((package / "index.json").read_bytes())
    (package / "index.json").write_text(json.dumps({**index, "schema": "trtbuild.package/4"}))
    with pytest.raises(PackageTooNew, match=r"has the format trtbuild\.package/4") as raised:
        trtbuild.load(package, device="cpu")
    assert "upgrade trtbuild" in str(raised.value.hint)


def test_without_verify_only_sizes_are_checked(package: Path) -> None:
    _alter_a_weight(package)
    trtbuild.load(package, device="cpu", verify=False)
    _truncate(package)
    with pytest.raises(PackageDamaged, match="is truncated"):
        trtbuild.load(package, device="cpu", verify=False)


def test_a_missing_package_is_an_error_with_a_hint(tmp_path: Path, package: Path) -> None:
    (tmp_path / "file").write_text("x")
    cases = {
        tmp_path / "nowhere": ("no such directory", "trtbuild build writes it"),
        tmp_path / "file": ("it is a file", "trtbuild build writes it"),
        tmp_path: ("it has no index.json", "there are packages in it: net"),
        package / "index.json": ("it is a file", f"name its directory: {package}"),
        tmp_path / "net.pt2": ("there is no file", "trtbuild.save writes it"),
    }
    for path, (text, hint) in cases.items():
        with pytest.raises(PackageMissing, match=text) as raised:
            trtbuild.load(path)
        assert hint in str(raised.value.hint)


def test_a_directory_that_cannot_be_listed_has_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Iterator[Path]:
        refused.append(path)
        raise PermissionError(13, "Permission denied")

    refused: list[Path] = []
    monkeypatch.setattr(Path, "iterdir", refuse)  # chmod would have no effect if root runs the tests
    with pytest.raises(PackageMissing, match=r"it has no index\.json") as raised:
        open_package(tmp_path)
    assert refused == [tmp_path] and "trtbuild build writes it" in str(raised.value.hint)


def test_ignores_the_provenance_of_another_package(package: Path) -> None:
    loaded = trtbuild.load(package, device="cpu")
    assert loaded.provenance == Provenance()
    for digest, verified in ((open_package(package).digest, ({"worst": 1e-7},)), ("0" * 64, ())):
        (package / "provenance.json").write_bytes(to_bytes(document("net", digest, [{"worst": 1e-7}])))
        assert loaded.provenance.verified == verified
    assert "about another package" in str(loaded.provenance.void)
