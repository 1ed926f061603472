"""The tutorial from its first command to its last, as a reader types them into one shell, with what each of them prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")
END = "end-of-command"


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, title, text) of the blocks of code, in order."""
    return re.findall(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def steps(page: str) -> list[tuple[str, str, list[str]]]:
    """("file", path, lines) and ("command", command, lines that it prints), in order. Blocks of `sh` only show."""
    found: list[tuple[str, str, list[str]]] = []
    for language, title, text in blocks(page):
        if title:
            found.append(("file", title, text.splitlines()))
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    found.append(("command", line[2:], []))
                else:
                    found[-1][2].append(line)
    return found


def alike(line: str) -> str:
    """`line` without what differs from run to run: digests, numbers, versions and widths of columns."""
    return " ".join(re.sub(r"\b[0-9a-f]{12}\b|\d+(\.\d+)*(e-\d+)?", "#", line).split())


def test_every_command_of_the_tutorial(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("trtbuild", "-m trtbuild"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (programs / name).chmod(0o755)
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    shell = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    assert shell.stdin is not None and shell.stdout is not None
    asked, place = 0, tmp_path
    with shell:
        for kind, what, lines in steps(PAGE):
            if kind == "file":
                (place / what).write_text("\n".join(lines) + "\n")
                continue
            asked += 1
            command = what.replace("/tmp/", f"{tmp_path}/")
            shell.stdin.write(f"{command}\nstatus=$?; echo; echo {END} $status $PWD\n")
            shell.stdin.flush()
            printed = []
            for line in shell.stdout:
                if line.startswith(END):
                    _, status, folder = line.split()
                    break
                printed.append(line)
            place = Path(folder)
            assert status == "0", (what, printed)
            seen = {alike(line) for line in printed}
            assert [line for line in lines if alike(line) not in seen] == [], (what, "".join(printed))
        shell.stdin.close()
    assert asked > 15


def test_the_installation_names_extras_that_there_are() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    (extras,) = re.findall(r"pip install '\.\[([\w,]+)\]'", PAGE)
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras.split(","))
