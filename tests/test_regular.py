"""Only regular files are read: a pipe in their place is an error at once, without waiting for a writer."""

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

#: Seconds after which a command has hung.
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
        for path, said in (
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
            assert caught.value.strerror == said
            assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def copy(small: Small, tmp_path: Path) -> CommandLine:
    """A copy of the built project, with its cache."""
    shutil.copytree(small.project, tmp_path / "project")
    shutil.copytree(small.cache, tmp_path / "cache")
    return CommandLine(tmp_path / "project", tmp_path / "cache")


def pipe(place: Path) -> None:
    """Put a named pipe there that has no writer."""
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place)


@pytest.mark.parametrize("command", ["inspect", "run", "bench", "verify", "diff"])
def test_a_pipe_in_the_place_of_a_packages_index(copy: CommandLine, command: str) -> None:
    pipe(copy.project / "dist/ranker/index.json")
    more = ["dist/ranker"] if command == "diff" else []
    done = copy.run(command, "dist/ranker", *more, timeout_s=HUNG_S)
    assert done.returncode == 2
    assert "its index.json is not a regular file" in done.stderr


@pytest.mark.parametrize("name", ["names.json", "provenance.json", "layers"])
def test_a_pipe_in_the_place_of_what_a_package_has_besides(copy: CommandLine, name: str) -> None:
    package = copy.project / "dist/ranker"
    place = next(iter(package.glob("engines/*/*.layers.json")), None) if name == "layers" else package / name
    assert place is not None
    pipe(place)
    assert copy.run("inspect", "dist/ranker", "--layers", timeout_s=HUNG_S).returncode == 0


def test_a_pipe_in_the_place_of_a_file_of_a_package(copy: CommandLine) -> None:
    program = next((copy.project / "dist/ranker/torch").iterdir())
    pipe(program)
    done = copy.run("run", "dist/ranker", "--device", "cpu", timeout_s=HUNG_S)
    assert done.returncode == 1
    assert f"{program.name} cannot be read: {PIPE}" in done.stderr


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
def test_a_pipe_for_an_input(copy: CommandLine, name: str) -> None:
    pipe(copy.project / name)
    done = copy.run("run", "dist/ranker", "--device", "cpu", "--input", f"x={name}", timeout_s=HUNG_S)
    assert (done.returncode, done.stderr) == (2, f"error: {name} cannot be read: {PIPE}\n")


def test_a_pipe_for_what_verify_replays(copy: CommandLine) -> None:
    pipe(copy.project / "worst.safetensors")
    done = copy.run("verify", "ranker", "--replay", "worst.safetensors", timeout_s=HUNG_S)
    assert PIPE in done.stderr + done.stdout


def test_pipes_among_what_a_plan_reads(copy: CommandLine) -> None:
    pipe(copy.project / "trtbuild.lock")
    done = copy.run("plan", timeout_s=HUNG_S)
    assert (done.returncode, done.stderr) == (2, f"error: trtbuild.lock: it cannot be read: {PIPE}\n")
    (copy.project / "trtbuild.lock").unlink()
    for name in (".trtbuild/history.json", "trtbuild.yaml"):
        pipe(copy.project / name)
        done = copy.run("plan", timeout_s=HUNG_S)
        assert (done.returncode, "not a regular file" in done.stderr) == ((2, True) if "yaml" in name else (0, False))
        (copy.project / name).unlink()


def test_a_pipe_in_the_place_of_weights(copy: CommandLine) -> None:
    manifest = copy.project / "trtbuild.yaml"
    manifest.write_text(manifest.read_text().replace("    inputs:", "    weights: w.safetensors\n    inputs:"))
    pipe(copy.project / "w.safetensors")
    done = copy.run("plan", timeout_s=HUNG_S)
    assert done.returncode == 2
    assert "not a regular file" in done.stderr


def test_a_pipe_in_the_place_of_the_caches_format(copy: CommandLine) -> None:
    pipe(copy.cache / "format")
    done = copy.run("plan", timeout_s=HUNG_S)
    assert done.returncode == 1
    assert PIPE in done.stderr


def test_a_pipe_in_the_place_of_the_last_builds_answer(copy: CommandLine) -> None:
    assert copy.run("build", timeout_s=240).returncode == 0
    snapshots = list((copy.project / ".trtbuild/null").iterdir())
    assert snapshots
    for place in snapshots:
        pipe(place)
    done = copy.run("build", timeout_s=HUNG_S)
    assert done.returncode == 0
