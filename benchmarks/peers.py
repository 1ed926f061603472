"""Write projects for other build systems (peers): by default 1,000 targets for make, ninja and doit, and 100 for dvc.

`cp` makes each target from its own source file. For trtbuild's null build, `measurements/null_build.py` sets a bound
relative to GNU make in this layout. GNU make spends most of its time on the search for built-in rules that could make each
source file, so its time grows with the number of sources. make runs without options, as most users call it.

Comparisons without a bound use `make -rR` (no built-in rules), one source file for five targets (``Shared.mk``), and
ninja. doit and dvc are in a separate virtual environment, with the versions of `peers.txt`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_DODO = '''\
"""One task for each target."""

DOIT_CONFIG = {{"dep_file": ".doit.db"}}


def task_copy():
    for number in range({count}):
        source, target = f"sources/{{number:04}}.txt", f"targets/{{number:04}}.txt"
        yield {{"name": f"{{number:04}}", "actions": [["cp", source, target]], "file_dep": [source], "targets": [target]}}
'''


def write_copy_project(folder: Path, count: int) -> Path:
    """Write a Makefile, a build.ninja and a dodo.py for `count` targets, and their sources. Nothing is built.

    ``Shared.mk`` makes the same targets from a fifth of the sources, five from each.
    """
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    (folder / "targets").mkdir(exist_ok=True)
    pairs = [(f"sources/{number:04}.txt", f"targets/{number:04}.txt") for number in range(count)]
    for source, _ in pairs:
        if not (folder / source).exists():
            (folder / source).write_text(f"{source}\n")
    rules = "".join(f"{target}: {source}\n\tcp {source} {target}\n" for source, target in pairs)
    goals = " ".join(target for _, target in pairs)
    (folder / "Makefile").write_text(f"all: {goals}\n.PHONY: all\n{rules}")
    shared = [(f"sources/{number // 5:04}.txt", f"targets/{number:04}.txt") for number in range(count)]
    rules = "".join(f"{target}: {source}\n\tcp {source} {target}\n" for source, target in shared)
    (folder / "Shared.mk").write_text(f"all: {goals}\n.PHONY: all\n{rules}")
    edges = "".join(f"build {target}: cp {source}\n" for source, target in pairs)
    (folder / "build.ninja").write_text(f"rule cp\n  command = cp $in $out\n{edges}")
    (folder / "dodo.py").write_text(_DODO.format(count=count))
    return folder


def write_dvc_project(folder: Path, count: int, dvc: Path) -> Path:
    """Write a dvc project of `count` stages, without git, and build it. A project that is built already is not changed."""
    if (folder / "dvc.lock").exists():
        return folder
    write_copy_project(folder, count)
    text = "stages:\n"
    for number in range(count):
        source, target = f"sources/{number:04}.txt", f"targets/{number:04}.txt"
        text += f"  copy{number:04}:\n    cmd: cp {source} {target}\n    deps: [{source}]\n    outs: [{target}]\n"
    (folder / "dvc.yaml").write_text(text)
    for command in (
        ["init", "--no-scm", "--quiet"],
        ["config", "core.analytics", "false"],
        ["config", "core.check_update", "false"],
        ["repro", "--quiet"],
    ):
        subprocess.run([dvc, *command], cwd=folder, check=True, timeout=1800, stdout=subprocess.DEVNULL)
    return folder
