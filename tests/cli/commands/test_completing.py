"""Completion of commands in a real bash, and the scripts for all shells."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.warm.servers import servers

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}, ampere: {sm: 86}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
defaults: {targets: [ada, ampere], profiles: [rows]}
models:
  vit: {source: {python: "net:build"}, inputs: {x: {}}}
  vitamin: {source: {python: "net:build"}, inputs: {x: {}}}
  bert: {source: {python: "net:build"}, inputs: {x: {}}}
"""

#: A bash program. Its arguments are the words of a command line, and it prints the completions of the last word.
COMPLETE = """\
eval "$(trtbuild completion bash)" || exit 9
complete -p trtbuild > /dev/null || exit 8
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_trtbuild_completion trtbuild
printf '%s\\n' "${COMPREPLY[@]}"
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def trtbuild(command_line: CommandLine) -> CommandLine:
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    (command_line.project / ".trtbuild").mkdir()
    (command_line.project / ".trtbuild" / "history.json").write_text('{"vit/engine/model@ada": {}, "gone/trace": {}}')
    folder = command_line.project.parent / "bin"
    folder.mkdir()
    # if possible, the command is forked from a process that has imported trtbuild, because this is faster
    start = shlex.join([sys.executable, *servers.forked_command("trtbuild.__main__", os.environ)])
    (folder / "trtbuild").write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    (folder / "trtbuild").chmod(0o755)
    return command_line


def complete(trtbuild: CommandLine, *words: str, folder: Path | None = None) -> list[str]:
    """Return the completions that bash offers for the last word in `words`."""
    path = f"{trtbuild.project.parent / 'bin'}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", "trtbuild", *words],
        cwd=folder or trtbuild.project,
        env={**os.environ, "PATH": path, "TRTBUILD_CACHE_DIR": str(trtbuild.cache)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["bu"], ["build"]),
        (["build", "v"], ["vit", "vitamin"]),
        (["plan", "--target", "a"], ["ada", "ampere"]),
        (["build", "--target", "ad"], ["ada"]),
        (["build", "--depfile-"], ["--depfile-target"]),
        (["why", "vit/en"], ["vit/engine/model@ada"]),
        (["why", "vit/c"], []),  # `vit` has no `quantize`, so it has no calibrate step
        (["why", "vit/engine/model", "@"], ["@ada"]),
        (["why", "vit/engine/model", "@", "a"], ["@ada"]),
        (["why", "gone"], []),
        (["cache", ""], ["stats", "verify", "gc", "keygen", "push", "pull", "export", "import"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_offers_completions(trtbuild: CommandLine, words: list[str], offered: list[str]) -> None:
    assert sorted(complete(trtbuild, *words)) == sorted(offered)


@needs_bash
def test_models_come_from_the_project_of_flag_c(trtbuild: CommandLine, tmp_path: Path) -> None:
    assert complete(trtbuild, "-C", "project", "plan", "be", folder=tmp_path) == ["bert"]
    assert complete(trtbuild, "plan", "-C", "project", "be", folder=tmp_path) == ["bert"]


@needs_bash
def test_with_errors_there_are_no_completions(trtbuild: CommandLine) -> None:
    (trtbuild.project / "trtbuild.yaml").write_text("models: [")
    assert complete(trtbuild, "build", "v") == []
    (trtbuild.project / "trtbuild.yaml").unlink()
    assert complete(trtbuild, "why", "v") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_valid_script(command_line: CommandLine, shell: str) -> None:
    result = command_line.run("completion", shell)
    assert result.returncode == 0
    assert "_TRTBUILD_COMPLETE" in result.stdout
    if shutil.which(shell):
        process = subprocess.run(
            [shell, "-n"], input=result.stdout, text=True, capture_output=True, timeout=60, check=False
        )
        assert process.returncode == 0, process.stderr


def test_completion_imports_neither_torch_nor_tensorrt_nor_onnx(trtbuild: CommandLine) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trtbuild"],
        cwd=trtbuild.project,
        env={
            **os.environ,
            "_TRTBUILD_COMPLETE": "bash_complete",
            "COMP_WORDS": "trtbuild\nbuild\nv",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "plain,vit\nplain,vitamin\n"
    imported = {
        line.rsplit("|", 1)[1].strip() for line in result.stderr.splitlines() if line.startswith("import time:")
    }
    assert not imported & {"torch", "tensorrt_rtx", "tensorrt", "onnx", "numpy", "diskcache"}
