"""Full disks, read-only directories, and a cache of a newer format.

A build succeeds even if the project's state (``.trtbuild``) cannot be written. Commands that only read the cache succeed
even if the cache is read-only. The other faults are errors with a hint.

The faults are real, for example small file systems in memory, and read-only mounts. Tests that mount file systems are
skipped where the process cannot mount them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine, ran
from tests.projects import WEIGHTS_FILE, copy_project, write_weights


@dataclass(frozen=True)
class Built:
    project: Path
    cache: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A project that was built once. Tests use copies."""
    folder = tmp_path_factory.mktemp("faults")
    command_line = CommandLine(copy_project("weights_file", folder / "project"), folder / "cache")
    write_weights(command_line.project / "net.safetensors", WEIGHTS_FILE)
    command_line("build")
    return Built(command_line.project, command_line.cache)


@pytest.fixture
def copied(built: Built, command_line: CommandLine) -> CommandLine:
    """A copy of the project and its cache, with other weights, so that a build changes the outputs."""
    shutil.copytree(built.project, command_line.project, dirs_exist_ok=True)
    shutil.copytree(built.cache, command_line.cache)
    write_weights(command_line.project / "net.safetensors", WEIGHTS_FILE, seed=1)
    return command_line


class Mounts:
    """Mounts file systems, and skips the test where that is not possible.

    A child process unmounts each file system when the child's standard input ends. This input also ends if the test
    process is killed. A mounted folder would make later runs of pytest fail, because they could not delete it.
    """

    def __init__(self) -> None:
        self._unmounting: list[subprocess.Popen[bytes]] = []

    def limit(self, place: Path, size_kib: int) -> None:
        """Mount a file system of `size_kib` over `place`, and copy the files of `place` into it."""
        aside = place.with_name(f"{place.name}-aside")
        place.mkdir(exist_ok=True)
        shutil.copytree(place, aside)
        self._mount("-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(place))
        self._unmount_at_end(place)
        shutil.copytree(aside, place, dirs_exist_ok=True)

    def grow(self, place: Path) -> None:
        self._mount("-o", "remount,size=256m", str(place))

    def read_only(self, place: Path) -> None:
        """Mount `place` read-only, also for root."""
        self._mount("--bind", str(place), str(place))
        self._unmount_at_end(place)
        self._mount("-o", "remount,ro,bind", str(place))
        assert not os.access(place, os.W_OK)

    def remove_all(self) -> None:
        for process in reversed(self._unmounting):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0

    def _unmount_at_end(self, place: Path) -> None:
        command = ["sh", "-c", 'cat; umount -l "$0"', str(place)]
        self._unmounting.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))

    def _mount(self, *arguments: str) -> None:
        completed = subprocess.run(["mount", *arguments], capture_output=True, text=True, timeout=60, check=False)
        if completed.returncode != 0:
            pytest.skip(f"this machine cannot mount: {completed.stderr.strip()}")


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount")
    mounts_of_test = Mounts()
    yield mounts_of_test
    mounts_of_test.remove_all()


def is_full(place: Path) -> bool:
    """Whether a write of 64 KiB fails because the disk is full."""
    probe = place / "probe"
    try:
        probe.write_bytes(os.urandom(64 << 10))
        return False
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        probe.unlink(missing_ok=True)


def used_kib(folder: Path) -> int:
    """The size of `folder` in a tmpfs, where each file and folder takes whole pages."""
    return sum(-(-path.stat().st_size // 4096) * 4 if path.is_file() else 4 for path in folder.rglob("*"))


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Path → content of the file, or None for a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def only_error(completed: subprocess.CompletedProcess[str], code: int) -> Any:
    """The only error of a command. Fails unless the command ended with `code`."""
    assert completed.returncode == code, completed.stdout + completed.stderr
    document = json.loads(completed.stdout)
    assert document["ok"] is False
    (error,) = document["errors"]
    assert "Traceback" not in error["text"], error["text"]
    return error


@pytest.mark.parametrize("room_kib", [8, 300, 1500])
def test_a_disk_that_is_too_small_for_the_weights_is_an_error(
    copied: CommandLine, mounts: Mounts, room_kib: int
) -> None:
    mounts.limit(copied.cache, used_kib(copied.cache) + room_kib)
    error = only_error(copied.run("build", "--json"), 1)
    assert error["type"] == "InsufficientResources"
    assert f"the cache {copied.cache} needs 3.1 MiB more for weights of net.safetensors" in error["text"]
    assert "trtbuild cache gc" in error["hint"]
    assert copied("cache", "verify")["damage"] == []
    mounts.grow(copied.cache)
    assert ran(copied("build"))["engine"] == 1


@pytest.mark.parametrize("room_kib", [3240, 3270, 3300])
def test_a_full_disk_under_the_cache_is_an_error_and_the_cache_stays_valid(
    copied: CommandLine, mounts: Mounts, room_kib: int
) -> None:
    """The disk has room for the weights, but not for the other files of the build."""
    mounts.limit(copied.cache, used_kib(copied.cache) + room_kib)
    error = only_error(copied.run("build", "--json"), 1)
    assert error["type"] == "StoreUnavailable"
    assert "cannot be used: No space left on device" in error["text"]
    assert error["file"] == str(copied.cache)
    assert "trtbuild cache gc" in error["hint"]
    assert copied("cache", "verify")["damage"] == []
    mounts.grow(copied.cache)
    assert ran(copied("build"))["engine"] == 1
    assert copied("cache", "verify")["damage"] == []


def test_a_full_disk_under_the_outputs_is_an_error_and_the_old_package_stays(
    copied: CommandLine, mounts: Mounts
) -> None:
    before = (copied.project / "dist" / "net" / "index.json").read_bytes()
    mounts.limit(copied.project / "dist", used_kib(copied.project / "dist") + 16)
    assert is_full(copied.project / "dist")
    error = only_error(copied.run("build", "--json"), 1)
    assert error["type"] == "InsufficientResources"
    assert "the outputs of model 'net' need 3.1 MiB more in dist/net, and its disk has " in error["text"]
    assert "then build again: the built engines are in the cache" in error["hint"]
    assert (copied.project / "dist" / "net" / "index.json").read_bytes() == before, "the old package is untouched"
    assert not list((copied.project / "dist").rglob("*.tmp"))
    mounts.grow(copied.project / "dist")
    assert ran(copied("build")) == {}
    assert (copied.project / "dist" / "net" / "index.json").read_bytes() != before


def test_a_build_succeeds_with_a_full_disk_under_the_projects_state(copied: CommandLine, mounts: Mounts) -> None:
    state = copied.project / ".trtbuild"
    shutil.rmtree(state)
    mounts.limit(state, 4)
    assert is_full(state)
    assert ran(copied("build")) == {"engine": 1, "package": 1}
    assert ran(copied("build")) == {}


def test_a_build_succeeds_with_a_read_only_project_state(copied: CommandLine, mounts: Mounts) -> None:
    mounts.read_only(copied.project / ".trtbuild")
    assert ran(copied("build")) == {"engine": 1, "package": 1}
    assert ran(copied("build")) == {}


def test_a_build_without_steps_to_run_succeeds_with_a_read_only_cache(copied: CommandLine, mounts: Mounts) -> None:
    write_weights(copied.project / "net.safetensors", WEIGHTS_FILE)  # the weights of the first build
    shutil.rmtree(copied.project / "dist")
    mounts.read_only(copied.cache)
    document = copied("build")
    assert ran(document) == {}
    assert (copied.project / "dist" / "net" / "index.json").exists()
    assert copied("plan")["ok"]


def test_a_build_with_a_read_only_cache_names_the_variable_for_another_one(copied: CommandLine, mounts: Mounts) -> None:
    mounts.read_only(copied.cache)
    error = only_error(copied.run("build", "--json"), 1)
    assert error["type"] == "StoreUnavailable"
    assert "cannot be used: Read-only file system" in error["text"]
    assert error["file"] == str(copied.cache)
    assert "TRTBUILD_CACHE_DIR" in error["hint"]


def test_a_read_only_output_directory_is_an_error_with_a_hint(copied: CommandLine, mounts: Mounts) -> None:
    mounts.read_only(copied.project / "dist")
    error = only_error(copied.run("build", "--json"), 1)
    assert "the outputs of model 'net' cannot be written (dist/net/" in error["text"]
    assert "choose other `outputs`" in error["hint"]


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_cache_of_a_newer_format_is_not_touched(copied: CommandLine, command: str) -> None:
    (copied.cache / "format").chmod(0o644)
    (copied.cache / "format").write_text("trtbuild.store/2\n")
    before = contents(copied.cache)
    error = only_error(copied.run(command, "--json"), 1)
    assert error["type"] == "StoreUnavailable"
    assert "has the format 'trtbuild.store/2'; this version of trtbuild reads trtbuild.store/1" in error["text"]
    assert error["hint"] == "upgrade trtbuild, or set TRTBUILD_CACHE_DIR to another directory"
    assert contents(copied.cache) == before


def test_a_file_where_the_output_directory_should_be_is_an_error(copied: CommandLine) -> None:
    shutil.rmtree(copied.project / "dist" / "net")
    (copied.project / "dist" / "net").write_text("a file")
    error = only_error(copied.run("build", "--json"), 1)
    assert "the outputs of model 'net' cannot be written" in error["text"]
    assert "remove it" in error["hint"]
