"""The commands of the tutorial, run in their order in one shell, print the lines that the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.warm.servers import servers

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text("utf-8")
END = "end-of-command"


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return (language, title, text) of the blocks of code, in order."""
    return re.findall(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def steps(page: str) -> list[tuple[str, str, list[str]]]:
    """Return ("file", path, lines) and ("command", command, output lines), in the order of the page."""
    found_steps: list[tuple[str, str, list[str]]] = []
    output_lines: list[str] = []
    for language, title, text in blocks(page):
        if title:
            found_steps.append(("file", title, text.splitlines()))
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    output_lines = []
                    found_steps.append(("command", line[2:], output_lines))
                else:
                    output_lines.append(line)
    return found_steps


def without_numbers(line: str) -> str:
    """Return `line` without the parts that differ between runs: digests, numbers, versions and widths of columns."""
    return " ".join(re.sub(r"\b[0-9a-f]{12}\b|\d+(\.\d+)*(e-\d+)?", "#", line).split())


def start_shell(folder: Path) -> subprocess.Popen[str]:
    """Start bash in `folder`, with the programs `trtbuild` and `python` of this environment, and without a GPU."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
    programs = folder / "bin"
    programs.mkdir()
    # this command starts trtbuild as a fork of a process that has already loaded torch
    trtbuild = shlex.join([sys.executable, *servers.forked_command("trtbuild.__main__", os.environ)])
    for name, command in (("trtbuild", trtbuild), ("python", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment
    )


def run_in_shell(shell: subprocess.Popen[str], command: str) -> tuple[str, Path, list[str]]:
    """Run a command. Return its exit status, the shell's folder afterwards, and the printed lines."""
    assert shell.stdin is not None and shell.stdout is not None
    shell.stdin.write(f"{command}\nstatus=$?; echo; echo {END} $status $PWD\n")
    shell.stdin.flush()
    printed = []
    for line in shell.stdout:
        if line.startswith(END):
            _, status, folder = line.split()
            return status, Path(folder), printed
        printed.append(line)
    raise AssertionError(f"the shell ended in {command!r}")


def test_every_command_of_the_tutorial_prints_the_shown_lines(tmp_path: Path) -> None:
    command_count, folder = 0, tmp_path
    with start_shell(tmp_path) as shell:
        for kind, content, lines in steps(PAGE):
            if kind == "file":
                (folder / content).write_text("\n".join(lines) + "\n")
                continue
            command_count += 1
            status, folder, printed = run_in_shell(shell, content.replace("/tmp/", f"{tmp_path}/"))
            assert status == "0", (content, printed)
            printed_lines = {without_numbers(line) for line in printed}
            assert [line for line in lines if without_numbers(line) not in printed_lines] == [], (
                content,
                "".join(printed),
            )
        assert shell.stdin is not None
        shell.stdin.close()
    assert command_count > 15


def test_the_extras_in_the_installation_exist() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    (extras,) = re.findall(r"pip install '\.\[([\w,]+)\]'", PAGE)
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras.split(","))
