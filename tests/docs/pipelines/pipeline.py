"""Runs the jobs of the GitHub workflow of docs/ci.md, each in a fresh clone and all with one shared cache.

The programs of the jobs are `pip`, which installs nothing, and `trtbuild`, whose JSON is logged.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.warm.servers import servers

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
THIS_ACTION = "YOURS/trtbuild@COMMIT"

_TRTBUILD = """#!/bin/sh
document=$({command} --json "$@")
status=$?
printf '%s\\n' "$document"
printf '%s\\n' "$document" >> {log}
exit $status
"""


@dataclass
class Pipeline:
    """Runs the commands of jobs in clones of the folder `sources`. The clones are in `root`, and share a remote cache."""

    root: Path
    sources: Path
    #: Extra flags for `trtbuild plan --matrix`.
    plan_flags: str = ""
    clones: list[Path] = field(default_factory=list)

    @property
    def cache(self) -> Path:
        return self.root / "shared"

    def clone(self) -> Path:
        """Return a fresh clone of the project, with an empty local cache."""
        folder = self.root / f"clone{len(self.clones)}"
        shutil.copytree(self.sources, folder)
        self.clones.append(folder)
        return folder

    def run_github_job(self, job: Mapping[str, Any], expressions: Mapping[str, str]) -> dict[str, str]:
        """Run a job in a fresh clone, and return the outputs of its steps. `expressions` has the values of ``${{ … }}``."""
        clone = self.clone()
        outputs = self.root / f"{clone.name}-outputs"
        for step in job["steps"]:
            for command, variables in _commands(step, expressions):
                self.run(command, clone, {"GITHUB_OUTPUT": str(outputs), **variables})
        lines = outputs.read_text().splitlines() if outputs.exists() else []
        return dict(line.split("=", 1) for line in lines)

    def run(self, command: str, clone: Path, variables: Mapping[str, str] | None = None) -> None:
        process = subprocess.run(
            ["sh", "-e", "-c", command.replace("plan --matrix github", f"plan --matrix github {self.plan_flags}")],
            cwd=clone,
            env={
                **os.environ,
                "PATH": f"{self._programs()}:{os.environ['PATH']}",
                "TRTBUILD_REMOTES": f"team=rw:file://{self.cache}",
                "GITHUB_ACTION_PATH": "ACTION",
                **(variables or {}),
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, f"$ {command}\n{process.stdout[-2000:]}{process.stderr[-4000:]}"

    def _programs(self) -> Path:
        """Return the folder with the programs `pip`, which logs its arguments, and `trtbuild`, which logs its output."""
        folder = self.root / "programs"
        if not folder.exists():
            folder.mkdir()
            # this command starts trtbuild as a fork of a process that has already loaded torch
            trtbuild = shlex.join([sys.executable, *servers.forked_command("trtbuild.cli.main", os.environ)])
            texts = {
                "pip": f'#!/bin/sh\necho "$@" >> {self.root}/pip\n',
                "trtbuild": _TRTBUILD.format(command=trtbuild, log=self.root / "documents"),
            }
            for name, text in texts.items():
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)
        return folder

    def steps_that_ran(self) -> Counter[tuple[str, str]]:
        """Return how often each step (stage, key) has run in all builds so far."""
        ran: Counter[tuple[str, str]] = Counter()
        for line in (self.root / "documents").read_text().splitlines():
            document = json.loads(line) if line.startswith("{") else {}
            if document.get("schema") == "trtbuild.build/1":
                assert document["ok"], document["errors"]
                ran.update((step["stage"], step["key"]) for step in document["steps"] if step["verdict"] == "run")
        return ran


def _commands(step: Mapping[str, Any], expressions: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return the commands of a step, each with its environment variables.

    If the step uses `THIS_ACTION`, its commands are in action.yml. Steps that use other actions have no commands."""
    if "run" in step:
        return [
            (step["run"], {name: with_values(str(value), expressions) for name, value in step.get("env", {}).items()})
        ]
    if step["uses"] != THIS_ACTION:
        return []
    inputs = {name: str(entry["default"]) for name, entry in ACTION["inputs"].items()}
    step_inputs = {name: with_values(str(value), expressions) for name, value in step["with"].items()}
    assert set(step_inputs) <= set(inputs)
    values = {f"inputs.{name}": value for name, value in {**inputs, **step_inputs}.items()}
    commands = []
    for inner_step in ACTION["runs"]["steps"]:
        condition = inner_step.get("if")  # compares an input with a constant
        if condition is not None:
            name, operator, constant = re.fullmatch(r"(inputs\.\S+) (==|!=) '(.*)'", condition).groups()  # type: ignore[union-attr]
            is_equal = values[name] == constant
            if not (is_equal if operator == "==" else not is_equal):
                continue
        if "run" in inner_step:
            commands += _commands(inner_step, values)
    return commands


def with_values(text: str, expressions: Mapping[str, str]) -> str:
    """Return `text` with the values of the expressions ``${{ … }}``. An unknown expression is an error."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: expressions[match[1]], text)
