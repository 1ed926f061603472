"""A link in a package to a path outside of the package is followed only with ``follow_links=True``."""

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
    """Move a file or directory out of the package, and put a link in its place. Return the new path."""
    outside = package.parent / f"outside-{name.replace('/', '-')}"
    shutil.move(package / name, outside)
    (package / name).symlink_to(outside)
    return outside


def program_name(package: Path) -> str:
    return f"torch/{sorted((package / 'torch').iterdir())[0].name}"


@pytest.mark.parametrize("kind", ["index", "file", "folder"])
@pytest.mark.parametrize("verify", [True, False])
def test_rejects_a_link_out_of_the_package_without_follow_links(package: Path, kind: str, verify: bool) -> None:
    name = {"index": "index.json", "file": program_name(package), "folder": "torch"}[kind]
    outside = move_out(package, name)
    with pytest.raises(LinkRefused) as caught:
        trtbuild.load(package, device="cpu", verify=verify)
    assert caught.value.text == (
        f"{package}/{name} is a symbolic link that leads out of the package, to {os.path.realpath(outside)}"
    )
    assert caught.value.hint == HINT
    trtbuild.load(package, device="cpu", verify=verify, follow_links=True)


def test_the_file_behind_a_link_is_verified(package: Path) -> None:
    outside = move_out(package, program_name(package))
    outside.write_bytes(bytes(outside.stat().st_size))
    with pytest.raises(PackageDamaged, match="is altered"):
        trtbuild.load(package, device="cpu", follow_links=True)


def test_rejects_a_link_that_leads_out_through_another_link(package: Path) -> None:
    name = program_name(package)
    outside = move_out(package, name)
    (package / name).unlink()
    (package / "second").symlink_to(os.path.relpath(outside, package))
    (package / name).symlink_to("../second")
    with pytest.raises(LinkRefused, match=f"{name} is a symbolic link .* to {outside}"):
        trtbuild.load(package, device="cpu")


def test_a_folder_whose_name_starts_with_the_packages_name_is_outside(package: Path) -> None:
    name = program_name(package)
    beside = package.with_name(f"{package.name}-old")
    beside.mkdir()
    shutil.move(package / name, beside / "file")
    (package / name).symlink_to(beside / "file")
    with pytest.raises(LinkRefused):
        trtbuild.load(package, device="cpu")


def test_follows_links_within_the_package(package: Path) -> None:
    name = program_name(package)
    (package / "data" / "deep").mkdir(parents=True)
    shutil.move(package / name, package / "data" / "deep" / "file")
    (package / name).symlink_to("../data/deep/file")
    (package / "really").mkdir()
    shutil.move(package / "weights", package / "really" / "weights")
    (package / "weights").symlink_to("really/weights")
    # Kubernetes mounts a ConfigMap in this way: the link of a file leads through the link of a folder.
    (package / "current").symlink_to(".")
    shutil.move(package / "index.json", package / "really" / "index.json")
    (package / "index.json").symlink_to("current/really/index.json")
    trtbuild.load(package, device="cpu")


def test_the_path_of_the_package_can_contain_links(package: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(package)
    (tmp_path / "releases").symlink_to(package.parent)
    for path in (tmp_path / "current", tmp_path / "releases" / package.name):
        trtbuild.load(path, device="cpu")


def test_an_opened_package_ignores_later_changes_of_its_link(package: Path, tmp_path: Path) -> None:
    """``current`` is a link to a release. It is changed while the package is open."""
    newer = tmp_path / "release-4"
    shutil.copytree(package, newer)
    name = program_name(package)
    (newer / name).write_bytes(bytes((newer / name).stat().st_size))
    (tmp_path / "current").symlink_to(package)
    opened = open_package(tmp_path / "current")
    (tmp_path / "next").symlink_to(newer)
    (tmp_path / "next").replace(tmp_path / "current")
    assert bytes(opened.read([name])[name]) == (package / name).read_bytes()
    with pytest.raises(PackageDamaged, match="is altered"):
        open_package(tmp_path / "current").read([name])


def test_rejects_broken_and_circular_links(package: Path) -> None:
    name = program_name(package)
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


def test_does_not_read_provenance_behind_a_link_out_of_the_package(package: Path) -> None:
    (package.parent / "elsewhere").write_text('{"schema": "trtbuild.provenance/1", "index": "0", "verified": []}')
    (package / "provenance.json").symlink_to(package.parent / "elsewhere")
    loaded = trtbuild.load(package, device="cpu")
    # `void` is the reason why a provenance file that was read is ignored. The file `elsewhere` is about another index.
    assert loaded.provenance.void is None
    assert trtbuild.load(package, device="cpu", follow_links=True).provenance.void is not None


@pytest.mark.parametrize("command", ["inspect", "run", "bench", "verify", "diff"])
def test_commands_reject_a_link_out_of_the_package(package: Path, tmp_path: Path, command: str) -> None:
    move_out(package, "index.json")
    more = {"run": ["--device", "cpu"], "diff": [str(package)]}.get(command, [])
    (tmp_path / "empty").mkdir()
    process = CommandLine(tmp_path / "empty", tmp_path / "cache").run(command, str(package), *more)
    assert process.returncode == (2 if command == "diff" else 1)  # diff's status 1 means that the packages differ
    assert "index.json is a symbolic link that leads out of the package, to " in process.stderr + process.stdout
