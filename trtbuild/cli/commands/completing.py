"""Completion in a shell (bash, zsh, fish): models, targets and steps of the project.

Rules
1. Completion is quick and silent. It reads the manifests and the history, plans nothing, and imports neither torch nor
   TensorRT. After an error it offers no names.
2. Names come from the manifests. Names of steps also come from the history (the file of the steps that have run), because
   some steps are known only after a build.
3. bash splits a step id such as ``vit/engine/p0@ada`` before and after the ``@`` (COMP_WORDBREAKS), so the parts are joined
   again. readline uses ``@`` as the start of a host name, and bash 5.2 inserts the offered text at the position of the
   ``@``. So the offered text begins with the ``@``.
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

#: The environment variable by which the shell asks for completions.
COMPLETION_VARIABLE = "_TRTBUILD_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(names_in: Callable[[Path, tuple[str, ...]], list[str]], *kinds: str) -> Completer:
    """Return a completer, which offers the names that begin with the typed text.

    `names_in` returns all names in a project: its arguments are the project's directory and manifests. If no name begins
    with the typed text, the shell completes paths of `kinds` (``dir``, ``file``)."""

    @functools.wraps(names_in)
    def complete_quietly(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = names_in(*_project(context))
        except Exception:  # rule 1
            names = []
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type=kind) for kind in kinds]

    return complete_quietly


def _project(context: click.Context) -> tuple[Path, tuple[str, ...]]:
    """The project and its manifests, from the flags ``-C`` and ``-f`` of the command line."""
    directory, files = ".", ()
    current: click.Context | None = context
    while current is not None:
        directory = current.params.get("directory") or directory
        files = current.params.get("files") or files
        current = current.parent
    return Path(directory), files


def _models(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild import manifest

    return [model.name for model in manifest.load(project, files or None).models]


def _targets(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild import manifest

    return sorted({target.name for model in manifest.load(project, files or None).models for target in model.targets})


def _steps(project: Path, files: tuple[str, ...]) -> list[str]:
    from trtbuild import manifest
    from trtbuild.core.planning.graph import STAGES

    declared = manifest.load(project, files or None).models
    models = [model.name for model in declared]
    steps = {
        f"{model.name}/{stage}"
        for model in declared
        for stage in STAGES
        if stage not in ("convert", "engine") and (stage != "calibrate" or model.quantization is not None)
    }
    try:
        history = json.loads(read_regular(project / ".trtbuild" / "history.json"))
    except (OSError, ValueError):
        history = {}
    return [*models, *sorted(steps | {step for step in history if step.partition("/")[0] in models})]


models = _completer(_models)
targets = _completer(_targets)
steps = _completer(_steps)
#: Completes a model's name, or the directory of a package.
packages = _completer(_models, "dir")
directory = _completer(lambda project, files: [], "dir")
file = _completer(lambda project, files: [], "file")


class _Bash(BashComplete):
    """Completion in bash (rule 3)."""

    #: The number of characters before the ``@``, which the offered text leaves out.
    _prefix_length = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        words, incomplete = super().get_completion_args()
        while words and (words[-1] == "@" or incomplete.startswith("@")):
            if incomplete.startswith("@"):
                self._prefix_length = len(words[-1])
            incomplete = words.pop() + incomplete
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return super().format_completion(CompletionItem(item.value[self._prefix_length :], type=item.type))


add_completion_class(_Bash)


def script(command: click.Command, shell: str) -> str:
    """The script that adds the completion of `command` to a `shell`."""
    kind: Any = get_completion_class(shell)
    template: str = kind(command, {}, "trtbuild", COMPLETION_VARIABLE).source_template
    return template % {
        "complete_func": "_trtbuild_completion",
        "complete_var": COMPLETION_VARIABLE,
        "prog_name": "trtbuild",
    }
