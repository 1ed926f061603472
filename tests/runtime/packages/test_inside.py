"""Links in a package: those within it are followed, those out of it only with ``follow_links=True``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import trtbuild
from tests.conftest import CommandLine
from trtbuild.errors import LinkRefused, PackageDamaged
from trtbuild.runtime.packages.package import open_package

HINT = "copy the package with the targets of its links (cp -rL), or use trtbuild.load(…, follow_links=True)"


def move_out(package: Path, name: str) -> Path:
    """Move a file or directory of a package out of it, and leave a link in its place. Returns where it is now."""
    outside = package.parent / f"outside-{name.replace('/', '-')}"
    shutil.move(package / name, outside)
    (package / name).symlink_to(outside)
    return outside


def a_program(package: Path) -> str:
    return f"torch/{sorted((package / 'torch').iterdir())[0].name}"


@pytest.mark.parametrize("what", ["index", "file", "folder"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_link_out_of_the_package_is_refused_without_follow_links(package: Path, what: str, verify: bool) -> None:
    name = {"index": "index.json", "file": a_program(package), "folder": "torch"}[what]
    outside = move_out(package, name)
    with pytest.raises(LinkRefused) as caught:
        trtbuild.load(package, device="cpu", verify=verify)
    assert caught.value.text == (
        f"{package}/{name} is a symbolic link that leads out of the package, to {os.path.realpath(outside)}"
    )
    assert caught.value.hint == HINT
    trtbuild.load(package, device="cpu", verify=verify, follow_links=True)


def test_the_target_of_a_link_is_verified(package: Path) -> None:
    outside = move_out(package, a_program(package))
    outside.write_bytes(bytes(outside.stat().st_size))
    with pytest.raises(PackageDamaged, match="is altered"):
        trtbuild.load(package, device="cpu", follow_links=True)


def test_a_link_that_leads_out_through_another_link_is_refused(package: Path) -> None:
    name = a_program(package)
    outside = move_out(package, name)
    (package / name).unlink()
    (package / "second").symlink_to(os.path.relpath(outside, package))
    (package / name).symlink_to("../second")
    with pytest.raises(LinkRefused, match=f"{name} is a symbolic link .* to {outside}"):
        trtbuild.load(package, device="cpu")


def test_a_folder_beside_the_package_whose_name_begins_like_it_is_outside(package: Path) -> None:
    name = a_program(package)
    beside = package.with_name(f"{package.name}-old")
    beside.mkdir()
    shutil.move(package / name, beside / "file")
    (package / name).symlink_to(beside / "file")
    with pytest.raises(LinkRefused):
        trtbuild.load(package, device="cpu")


def test_links_within_the_package_are_followed(package: Path) -> None:
    name = a_program(package)
    (package / "data" / "deep").mkdir(parents=True)
    shutil.move(package / name, package / "data" / "deep" / "file")
    (package / name).symlink_to("../data/deep/file")
    (package / "really").mkdir()
    shutil.move(package / "weights", package / "really" / "weights")
    (package / "weights").symlink_to("really/weights")
    (package / "current").symlink_to(".")  # as a mounted ConfigMap has it
    shutil.move(package / "index.json", package / "really" / "index.json")
    (package / "index.json").symlink_to("current/really/index.json")
    trtbuild.load(package, device="cpu")


def test_the_directory_itself_may_be_a_link_and_lie_behind_one(package: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(package)
    (tmp_path / "releases").symlink_to(package.parent)
    for path in (tmp_path / "current", tmp_path / "releases" / package.name):
        trtbuild.load(path, device="cpu")


def test_all_files_are_of_the_release_that_was_opened(package: Path, tmp_path: Path) -> None:
    """The link to the newest release is changed while a package is loaded."""
    other = tmp_path / "release-4"
    shutil.copytree(package, other)
    name = a_program(package)
    (other / name).write_bytes(bytes((other / name).stat().st_size))
    (tmp_path / "current").symlink_to(package)
    opened = open_package(tmp_path / "current")
    (tmp_path / "next").symlink_to(other)
    (tmp_path / "next").replace(tmp_path / "current")
    assert bytes(opened.read([name])[name]) == (package / name).read_bytes()
    with pytest.raises(PackageDamaged, match="is altered"):
        open_package(tmp_path / "current").read([name])


def test_links_to_nothing_and_in_circles(package: Path) -> None:
    name = a_program(package)
    (package / name).unlink()
    (package / name).symlink_to("nothing")
    with pytest.raises(PackageDamaged, match="is missing"):
        trtbuild.load(package, device="cpu")
    (package / name).unlink()
    (package / name).symlink_to(Path(name).name)
    with pytest.raises(PackageDamaged, match="Too many levels of symbolic links"):
        trtbuild.load(package, device="cpu")
    (package / name).unlink()
    (package / name).symlink_to("/nowhere/at/all")
    with pytest.raises(LinkRefused, match="to /nowhere/at/all"):
        trtbuild.load(package, device="cpu")


def test_provenance_behind_a_link_out_of_the_package_is_not_read(package: Path) -> None:
    (package.parent / "elsewhere").write_text('{"schema": "trtbuild.provenance/1", "index": "0", "verified": []}')
    (package / "provenance.json").symlink_to(package.parent / "elsewhere")
    loaded = trtbuild.load(package, device="cpu")
    assert loaded.provenance.void is None
    assert trtbuild.load(package, device="cpu", follow_links=True).provenance.void is not None


@pytest.mark.parametrize("command", ["inspect", "run", "bench", "verify", "diff"])
def test_commands_refuse_it_too(package: Path, tmp_path: Path, command: str) -> None:
    move_out(package, "index.json")
    more = ["--device", "cpu"] if command == "run" else [str(package)] if command == "diff" else []
    (tmp_path / "empty").mkdir()
    done = CommandLine(tmp_path / "empty", tmp_path / "cache").run(command, str(package), *more)
    assert done.returncode == (2 if command == "diff" else 1)
    assert "index.json is a symbolic link that leads out of the package, to " in done.stderr + done.stdout
