"""The history of a project: the last recipe and the last run of each step.

The history may be deleted. It affects messages and estimates, but no result.

The file is one JSON object in ``.trtbuild/``: step id → entry, with each entry on its own line. An entry is parsed when it
is needed. A project with thousands of steps has megabytes of entries, and a build without changes needs none of them.
The file is replaced atomically. Simultaneous builds of different models merge their entries.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.codec import decode, encode, optional
from trtbuild.regular import read_regular

_UNCACHEABLE_MEMBER = '"uncacheable":'


@dataclass(frozen=True)
class LastRun:
    """The reason, duration and memory peak of a step's last run on this machine. An unknown peak is None."""

    reason: Reason
    duration_s: float
    peak_rss_bytes: int | None = optional()


class History:
    """The last recipe and the last run of each step, by step id.

    The file is read once. `note_recipe` notes new entries, and `save` adds them to the file.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / "history.json"
        self._entries = _read_entries(self._path)
        self._new_entries: dict[str, str] = {}
        self._parsed: dict[str, dict[str, Any]] = {}

    def recipe(self, step: str) -> Recipe | None:
        """The recipe of the step when it was last built or found, or None."""
        entry = self._entry(step)
        if not entry:
            return None
        try:
            return Recipe.from_json(entry["recipe"])
        except (KeyError, ValueError):
            return None

    def last_run(self, step: str) -> LastRun | None:
        """The step's last run on this machine, or None."""
        with contextlib.suppress(TypeError, ValueError, KeyError):
            return decode(LastRun, self._entry(step).get("ran"))
        return None

    def steps(self) -> list[str]:
        """The ids of all steps of the history."""
        return list(self._entries)

    def uncacheable(self, step: str) -> str | None:
        """The reason why the step's last result was not cached, or None."""
        if _UNCACHEABLE_MEMBER not in self._entries.get(step, ""):
            return None
        reason = self._entry(step).get("uncacheable")
        return str(reason) if reason else None

    def note_recipe(
        self, step: str, recipe: Recipe, ran: LastRun | None = None, uncacheable: str | None = None
    ) -> None:
        """Note a step's recipe. `ran` describes its run, if the step has just run.

        `uncacheable` is the reason why the result was not cached, or None.
        """
        entry_start = f'{{"recipe":{recipe.text},"ran":'
        if not ran and not uncacheable:
            old = self._entries.get(step, "")
            if old.startswith(entry_start) and _UNCACHEABLE_MEMBER not in old:  # the file already has this entry
                self._new_entries.pop(step, None)
                return
        last = encode(ran) if ran else self._entry(step).get("ran")
        entry_end = f",{_UNCACHEABLE_MEMBER}{_to_json(uncacheable)}" if uncacheable else ""
        self._new_entries[step] = f"{entry_start}{_to_json(last)}{entry_end}}}"

    def save(self) -> None:
        """Write the noted entries. An error is ignored: a state directory that is not writable must not fail a build."""
        changed = {step: entry for step, entry in self._new_entries.items() if self._entries.get(step) != entry}
        if not changed:
            return
        with contextlib.suppress(OSError), _hold_lock(self._path):
            merged = {**_read_entries(self._path), **changed}
            lines = ",\n".join([f"{_to_json(step)}:{entry}" for step, entry in merged.items()])
            replace_file(self._path, f"{{\n{lines}\n}}".encode(), mode=0o600)

    def _entry(self, step: str) -> dict[str, Any]:
        parsed = self._parsed.get(step)
        if parsed is None:
            parsed = {}
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads(self._entries.get(step, "{}"))
                parsed = document if isinstance(document, dict) else {}
            self._parsed[step] = parsed
        return parsed


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def _read_entries(path: Path) -> dict[str, str]:
    """The entry of each step as JSON text; empty if the file is missing or cannot be read."""
    try:
        text = read_regular(path).decode()
        return _parse_lines(text) or {step: _to_json(entry) for step, entry in json.loads(text).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _parse_lines(text: str) -> dict[str, str] | None:
    """The entries of a file in the format of `save`; None for any other format."""
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
def _hold_lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
