"""Messages about a machine without a toolchain, without torch, or without a usable cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import trtbuild
from tests.messages.catalogue import MANIFEST, normalized
from trtbuild.cli.main import run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "trtbuild.yaml").write_text(MANIFEST)
    (folder / "net.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(8, 8).eval()\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def environment_without(tmp_path: Path, *distributions: str) -> dict[str, str]:
    """Environment variables with which Python finds all installed distributions except these."""
    site_packages = tmp_path / "site-packages"
    site_packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.replace("_", "-").startswith(tuple(f"{name}-" for name in distributions)):
            (site_packages / entry.name).symlink_to(entry)
    return {"PYTHONPATH": f"{site_packages}{os.pathsep}{Path(trtbuild.__file__).parents[1]}"}


def run_failing_build(project: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Build in another process. Return its exit status, standard error, and the type of the only error in its JSON."""
    process = subprocess.run(
        [sys.executable, "-S", "-m", "trtbuild.cli.main", "build", "--json"],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    (error,) = json.loads(process.stdout)["errors"]
    return process.returncode, process.stderr, error["type"]


def run_failing_command(arguments: list[str], project: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command. Return its exit status, its message, and the type of the only error in its JSON."""
    code = run([*arguments, "--json"])
    out, err = capfd.readouterr()
    (error,) = json.loads(out)["errors"]
    return code, normalized(err, project).replace(str(project.parent / "cache"), "CACHE"), error["type"]


def test_the_message_if_torch_is_not_installed(project: Path, tmp_path: Path) -> None:
    assert run_failing_build(project, environment_without(tmp_path, "torch", "onnxscript")) == (
        2,
        "error: model 'net' has to be traced or converted, but torch and onnxscript are not installed\n"
        "  → pip install 'trtbuild[torch]'\n",
        "ToolchainMissing",
    )


def test_the_message_if_a_toolchain_is_not_installed(project: Path, tmp_path: Path) -> None:
    assert run_failing_build(project, environment_without(tmp_path, "tensorrt-rtx")) == (
        2,
        "error: trtbuild.yaml:3: target 'ada' needs tensorrt-rtx, which is not installed\n"
        "  → pip install 'tensorrt-rtx', or pin the target's version to use engines from the cache\n",
        "ToolchainMissing",
    )


def test_the_message_if_a_file_is_in_the_place_of_the_cache(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project.parent / "cache").write_text("")
    code, text, kind = run_failing_command(["build"], project, capfd)
    assert text == (
        "error: CACHE: the cache cannot be used: Not a directory\n"
        "  → a file is in its way: remove it, or set TRTBUILD_CACHE_DIR to another directory\n"
    )
    assert (code, kind) == (1, "StoreUnavailable")


@pytest.mark.parametrize(
    ("format_", "hint"),
    [
        ("trtbuild.store/2", "upgrade trtbuild, or set TRTBUILD_CACHE_DIR to another directory"),
        ("restic 1", "this is not a cache of trtbuild: set TRTBUILD_CACHE_DIR to another directory"),
    ],
    ids=["newer", "foreign"],
)
def test_the_message_about_a_cache_of_another_format(
    project: Path, capfd: pytest.CaptureFixture[str], format_: str, hint: str
) -> None:
    (project.parent / "cache").mkdir()
    (project.parent / "cache/format").write_text(f"{format_}\n")
    code, text, kind = run_failing_command(["build"], project, capfd)
    assert text == (
        f"error: CACHE/format: the cache has the format {format_!r}; "
        f"this version of trtbuild reads trtbuild.store/1\n  → {hint}\n"
    )
    assert (code, kind) == (1, "StoreUnavailable")
    assert list((project.parent / "cache").iterdir()) == [project.parent / "cache/format"]
