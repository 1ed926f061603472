"""Completion in a shell: models, targets and steps of the project at hand.

Rules
1. It is quick and quiet: manifests and the history are read, nothing is planned, neither torch nor TensorRT is imported,
   and whatever goes wrong is an empty answer.
2. Names come from the manifests; steps from the history too, because their names are known when they have been built.
3. bash cuts words before and after an ``@`` (COMP_WORDBREAKS), and step ids have one: they are put together again. Answers
   begin with the ``@``, because bash puts them there (5.2, measured: readline's special prefix for names of hosts).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from trtbuild.regular import read_regular

VARIABLE = "_TRTBUILD_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _quiet(complete: Callable[[Path, tuple[str, ...]], list[str]], *also: str) -> Completer:
    """A completer of names that start like what was typed; `also` are click's own kinds: ``dir``, ``file``."""

    @functools.wraps(complete)
    def quiet(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = complete(*_project(context))
        except Exception:  # rule 1
            names = []
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type=kind) for kind in also]

    return quiet


def _project(context: click.Context) -> tuple[Path, tuple[str, ...]]:
    """The project and the manifests that the words before say."""
    directory, files = ".", ()
    at: click.Context | None = context
    while at is not None:
        directory = at.params.get("directory") or directory
        files = at.params.get("files") or files
        at = at.parent
    return Path(directory), files


def _models(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild import manifest

    return [model.name for model in manifest.load(project, files or None).models]


def _targets(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild import manifest

    return sorted({target.name for model in manifest.load(project, files or None).models for target in model.targets})


def _steps(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild.core.planning.graph import STAGES

    models = _models(project, files)
    steps = {f"{model}/{stage}" for model in models for stage in STAGES if stage not in ("convert", "engine")}
    try:
        known = json.loads(read_regular(project / ".trtbuild" / "history.json"))
    except (OSError, ValueError):
        known = {}
    return [*models, *sorted(steps | {step for step in known if step.partition("/")[0] in models})]


models = _quiet(_models)
targets = _quiet(_targets)
steps = _quiet(_steps)
#: A model, or a package's directory.
packages = _quiet(_models, "dir")
directory = _quiet(lambda project, files: [], "dir")
file = _quiet(lambda project, files: [], "file")


class _Bash(BashComplete):
    """Rule 3."""

    _cut = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        words, incomplete = super().get_completion_args()
        while words and (words[-1] == "@" or incomplete.startswith("@")):
            if incomplete.startswith("@"):
                self._cut = len(words[-1])
            incomplete = words.pop() + incomplete
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return super().format_completion(CompletionItem(item.value[self._cut :], type=item.type))


add_completion_class(_Bash)


def script(command: click.Command, shell: str) -> str:
    """What a shell has to read for completing `trtbuild`."""
    kind: Any = get_completion_class(shell)
    template: str = kind(command, {}, "trtbuild", VARIABLE).source_template
    return template % {
        "complete_func": "_trtbuild_completion",
        "complete_var": VARIABLE,
        "prog_name": "trtbuild",
    }
