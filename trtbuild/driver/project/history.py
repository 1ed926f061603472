"""What each step of this project last was: its recipe, and why it last ran. Deletable; it decides nothing but wording.

One JSON file in ``.trtbuild/``, replaced atomically: an object by step id, each entry on a line of its own. So an entry
is parsed when it is asked for, and not before: a project of thousands of steps has megabytes of them, and one in which
nothing has changed asks for none. Two builds of different models at once merge their entries.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.regular import read_regular

_UNCACHEABLE = '"uncacheable":'


class History:
    """Last recipes and reasons by step id. Reads once; `save` merges what `note` collected."""

    def __init__(self, state: Path) -> None:
        self._path = state / "history.json"
        self._entries = _read(self._path)
        self._noted: dict[str, str] = {}
        self._parsed: dict[str, dict[str, Any]] = {}

    def recipe(self, step: str) -> Recipe | None:
        """The recipe that the step had when it was last built or found."""
        entry = self._entry(step)
        if not entry:
            return None
        try:
            return Recipe.from_json(entry["recipe"])
        except (KeyError, ValueError):
            return None

    def last_run(self, step: str) -> Mapping[str, Any] | None:
        """``{"reason", "duration_s"}`` of the step's last run here, or None."""
        found = self._entry(step).get("ran")
        return found if isinstance(found, dict) else None

    def uncacheable(self, step: str) -> str | None:
        """Why the step's last result was not kept, or None."""
        if _UNCACHEABLE not in self._entries.get(step, ""):
            return None
        found = self._entry(step).get("uncacheable")
        return str(found) if found else None

    def note(
        self, step: str, recipe: Recipe, ran: Mapping[str, Any] | None = None, uncacheable: str | None = None
    ) -> None:
        """Remember a step's recipe; `ran` when it was run just now."""
        start = f'{{"recipe":{recipe.text},"ran":'
        if not ran and not uncacheable:
            old = self._entries.get(step, "")
            if old.startswith(start) and _UNCACHEABLE not in old:
                self._noted.pop(step, None)
                return
        last = dict(ran) if ran else self._entry(step).get("ran")
        end = f",{_UNCACHEABLE}{_dumps(uncacheable)}" if uncacheable else ""
        self._noted[step] = f"{start}{_dumps(last)}{end}}}"

    def save(self) -> None:
        """Write down what was noted. A state directory that cannot be written is no reason to fail a build."""
        changed = {step: entry for step, entry in self._noted.items() if self._entries.get(step) != entry}
        if not changed:
            return
        with contextlib.suppress(OSError), _locked(self._path):
            merged = {**_read(self._path), **changed}
            lines = ",\n".join([f"{_dumps(step)}:{entry}" for step, entry in merged.items()])
            descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".history-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{{\n{lines}\n}}")
            Path(temporary).replace(self._path)

    def _entry(self, step: str) -> dict[str, Any]:
        found = self._parsed.get(step)
        if found is None:
            found = {}
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(self._entries.get(step, "{}"))
                found = entry if isinstance(entry, dict) else {}
            self._parsed[step] = found
        return found


_dumps = json.JSONEncoder(separators=(",", ":")).encode


def _read(path: Path) -> dict[str, str]:
    """The JSON text of each step's entry."""
    try:
        text = read_regular(path).decode()
        return _lines(text) or {step: _dumps(entry) for step, entry in json.loads(text).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _lines(text: str) -> dict[str, str] | None:
    """The entries of a file in the form that `save` writes; None for any other."""
    lines = text.split("\n")
    if lines[0] != "{" or lines[-1] != "}":
        return None
    entries = {}
    for line in lines[1:-1]:
        step, _, entry = line.removesuffix(",").partition('":{')
        if step[:1] != '"' or entry[-1:] != "}" or "\\" in step:
            return None
        entries[step[1:]] = "{" + entry
    return entries


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
