"""Only regular files are read. A pipe in place of a file is an error or is ignored, so no command waits for its writer."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.driver.conftest import Small, small
from trtbuild.regular import open_regular, read_regular

__all__ = ["small"]

#: Seconds after which a command counts as hanging.
HUNG_S = 60
PIPE = "it is a named pipe, not a regular file"


def test_a_regular_file_is_read_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(str(tmp_path / "link")) == b"data"


def test_other_file_types_are_errors_that_name_the_type(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(tmp_path / "socket"))
        for path, error in (
            (tmp_path / "pipe", PIPE),
            (tmp_path / "link", PIPE),
            (tmp_path / "socket", "it is a socket or a device, not a regular file"),
            (Path("/dev/zero"), "it is a device, not a regular file"),
            (tmp_path, "Is a directory"),
            (tmp_path / "nothing", "No such file or directory"),
            (tmp_path / "loop", "Too many levels of symbolic links"),
        ):
            before = len(list(Path("/proc/self/fd").iterdir()))
            with pytest.raises(OSError) as caught:
                open_regular(path)
            assert caught.value.strerror == error
            assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def copy(small: Small, tmp_path: Path) -> CommandLine:
    shutil.copytree(small.project, tmp_path / "project")
    shutil.copytree(small.cache, tmp_path / "cache")
    return CommandLine(tmp_path / "project", tmp_path / "cache")


def replace_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("command", ["inspect", "run", "bench", "verify", "diff"])
def test_a_pipe_in_place_of_a_packages_index_is_an_error(copy: CommandLine, command: str) -> None:
    replace_by_pipe(copy.project / "dist/ranker/index.json")
    packages = ["dist/ranker"] * (2 if command == "diff" else 1)
    process = copy.run(command, *packages, timeout_s=HUNG_S)
    assert process.returncode == 2
    assert "its index.json is not a regular file" in process.stderr


@pytest.mark.parametrize("name", ["names.json", "provenance.json", "layers"])
def test_pipes_in_place_of_optional_files_of_a_package_are_ignored(copy: CommandLine, name: str) -> None:
    package = copy.project / "dist/ranker"
    path = next(iter(package.glob("engines/*/*.layers.json")), None) if name == "layers" else package / name
    assert path is not None
    replace_by_pipe(path)
    assert copy.run("inspect", "dist/ranker", "--layers", timeout_s=HUNG_S).returncode == 0


def test_a_pipe_in_place_of_a_program_of_a_package_is_an_error(copy: CommandLine) -> None:
    program = next((copy.project / "dist/ranker/torch").iterdir())
    replace_by_pipe(program)
    process = copy.run("run", "dist/ranker", "--device", "cpu", timeout_s=HUNG_S)
    assert process.returncode == 1
    assert f"{program.name} cannot be read: {PIPE}" in process.stderr


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
def test_a_pipe_as_an_input_is_an_error(copy: CommandLine, name: str) -> None:
    replace_by_pipe(copy.project / name)
    process = copy.run("run", "dist/ranker", "--device", "cpu", "--input", f"x={name}", timeout_s=HUNG_S)
    assert (process.returncode, process.stderr) == (2, f"error: {name} cannot be read: {PIPE}\n")


def test_a_pipe_as_inputs_to_replay_is_an_error(copy: CommandLine) -> None:
    replace_by_pipe(copy.project / "worst.safetensors")
    process = copy.run("verify", "ranker", "--replay", "worst.safetensors", timeout_s=HUNG_S)
    assert (process.returncode, PIPE in process.stderr) == (2, True), process.stdout + process.stderr


def test_a_pipe_in_place_of_the_lock_or_the_manifest_is_an_error(copy: CommandLine) -> None:
    replace_by_pipe(copy.project / "trtbuild.lock")
    process = copy.run("plan", timeout_s=HUNG_S)
    assert (process.returncode, process.stderr) == (2, f"error: trtbuild.lock: it cannot be read: {PIPE}\n")
    (copy.project / "trtbuild.lock").unlink()
    replace_by_pipe(copy.project / "trtbuild.yaml")
    process = copy.run("plan", timeout_s=HUNG_S)
    assert process.returncode == 2
    assert "not a regular file" in process.stderr


def test_a_pipe_in_place_of_the_history_is_ignored(copy: CommandLine) -> None:
    replace_by_pipe(copy.project / ".trtbuild/history.json")
    process = copy.run("plan", timeout_s=HUNG_S)
    assert process.returncode == 0
    assert "not a regular file" not in process.stderr


def test_a_pipe_in_place_of_weights_is_an_error(copy: CommandLine) -> None:
    manifest = copy.project / "trtbuild.yaml"
    manifest.write_text(manifest.read_text().replace("    inputs:", "    weights: w.safetensors\n    inputs:"))
    replace_by_pipe(copy.project / "w.safetensors")
    process = copy.run("plan", timeout_s=HUNG_S)
    assert process.returncode == 2
    assert "not a regular file" in process.stderr


def test_a_pipe_in_place_of_the_caches_format_is_an_error(copy: CommandLine) -> None:
    replace_by_pipe(copy.cache / "format")
    process = copy.run("plan", timeout_s=HUNG_S)
    assert process.returncode == 1
    assert PIPE in process.stderr


def test_a_pipe_in_place_of_a_snapshot_is_ignored(copy: CommandLine) -> None:
    assert copy.run("build", timeout_s=240).returncode == 0
    snapshots = list((copy.project / ".trtbuild/null").iterdir())
    assert snapshots
    for path in snapshots:
        replace_by_pipe(path)
    process = copy.run("build", timeout_s=HUNG_S)
    assert process.returncode == 0
