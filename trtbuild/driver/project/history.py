"""The history of a project: the last recipe and the last run of each step.

The history may be deleted, because no result depends on it. It has these uses:

* Messages, estimates and ``trtbuild diff`` show facts about the last build.
* A step whose last result was not cached runs again. The depfile of a build with such a step declares its targets out of
  date.
* A build removes the engine files and ``.pt2`` files that an earlier build wrote, if they are not outputs of this build.

``.trtbuild/history.json`` is one JSON object: step id → entry, with each entry on its own line. An entry is read and parsed
only when it is needed, because a project with thousands of steps has megabytes of entries. The file is replaced atomically.
Simultaneous builds of different models merge their entries.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trtbuild.atomic import lock_beside, replace_file
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.codec import decode, encode, optional
from trtbuild.regular import open_regular

_UNCACHEABLE_MEMBER = '"uncacheable":'


@dataclass(frozen=True)
class LastRun:
    """The last run of a step on this machine. An unknown memory peak is None."""

    reason: Reason
    duration_s: float
    peak_rss_bytes: int | None = optional()


class History:
    """The last recipe and the last run of each step, by step id. `save` writes the entries that `note_recipe` has noted."""

    def __init__(self, state: Path) -> None:
        self._path = state / "history.json"
        self._entries, self._uncacheable_steps = _open_entries(self._path)
        self._new_entries: dict[str, str] = {}
        self._parsed: dict[str, dict[str, Any]] = {}

    def recipe(self, step: str) -> Recipe | None:
        """The recipe with which the step last ran or was a hit, or None."""
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
        return list(self._entries)

    def uncacheable(self, step: str) -> str | None:
        """The reason why the step's last result was not cached, or None."""
        if step not in self._uncacheable_steps:
            return None
        reason = self._entry(step).get("uncacheable")
        return str(reason) if reason else None

    def note_recipe(
        self, step: str, recipe: Recipe, ran: LastRun | None = None, uncacheable: str | None = None
    ) -> None:
        """Note the current recipe of a step. `ran` describes the run of a step that has just run.

        `uncacheable` is the reason why the result was not cached, or None.
        """
        entry_start = f'{{"recipe":{recipe.text},"ran":'
        has_only_recipe = not ran and not uncacheable
        was_cached = step not in self._uncacheable_steps
        if (
            has_only_recipe and was_cached and self._text(step).startswith(entry_start)
        ):  # the file already has this entry
            self._new_entries.pop(step, None)
            return
        last = encode(ran) if ran else self._entry(step).get("ran")
        entry_end = f",{_UNCACHEABLE_MEMBER}{_to_json(uncacheable)}" if uncacheable else ""
        self._new_entries[step] = f"{entry_start}{_to_json(last)}{entry_end}}}"

    def save(self) -> None:
        """Write the noted entries. Errors are ignored, because a build also works without a writable state directory."""
        changed = {step: entry for step, entry in self._new_entries.items() if self._text(step) != entry}
        if not changed:
            return
        with contextlib.suppress(OSError), lock_beside(self._path):
            entries, _ = _open_entries(self._path)
            merged = {**entries, **changed}
            lines = ",\n".join([f"{_to_json(step)}:{entry}" for step, entry in merged.items()])
            replace_file(self._path, f"{{\n{lines}\n}}".encode(), mode=0o600)

    def _text(self, step: str) -> str:
        """The entry of a step as JSON text; "" if there is no readable entry."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._entries.get(step, "")
        return ""

    def _entry(self, step: str) -> dict[str, Any]:
        parsed = self._parsed.get(step)
        if parsed is None:
            parsed = {}
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads(self._text(step))
                parsed = document if isinstance(document, dict) else {}
            self._parsed[step] = parsed
        return parsed


_to_json = json.JSONEncoder(separators=(",", ":")).encode


class _StoredEntries(Mapping[str, str]):
    """Step id → entry as JSON text, read from an open file when it is requested.

    `places` maps step ids to the position and the size of the entry in bytes. The descriptor is closed when the object is
    freed.
    """

    def __init__(self, descriptor: int, places: Mapping[str, tuple[int, int]]) -> None:
        self._descriptor = descriptor
        self._places = places
        weakref.finalize(self, os.close, descriptor)

    def __getitem__(self, step: str) -> str:
        position, size = self._places[step]
        return os.pread(self._descriptor, size, position).decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _open_entries(path: Path) -> tuple[Mapping[str, str], set[str]]:
    """Step id → entry as JSON text, and the steps whose results were not cached.

    Both are empty if the file is missing or cannot be read."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return {}, set()
    places: dict[str, tuple[int, int]] = {}
    entries: Mapping[str, str] = _StoredEntries(descriptor, places)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            uncacheable_steps = _find_entries(file, places)
            if uncacheable_steps is None:  # JSON in another layout than that of `save`
                file.seek(0)
                entries = {step: _to_json(entry) for step, entry in json.load(file).items()}
                uncacheable_steps = {step for step, entry in entries.items() if _UNCACHEABLE_MEMBER in entry}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}, set()
    return entries, uncacheable_steps


def _find_entries(file: BinaryIO, places: dict[str, tuple[int, int]]) -> set[str] | None:
    """Add the position and the size of each entry in bytes to `places`.

    Returns the steps whose results were not cached, or None if the file is not in the format of `save`."""
    uncacheable_steps, uncacheable_member = set(), _UNCACHEABLE_MEMBER.encode()
    line = file.readline()
    if line != b"{\n":
        return None
    position = len(line)
    for line in file:
        step, _, entry = line.removesuffix(b"\n").removesuffix(b",").partition(b'":')
        if step[:1] != b'"' or entry[:1] != b"{" or entry[-1:] != b"}" or b"\\" in step:
            break
        name = step[1:].decode()
        places[name] = position + len(step) + 2, len(entry)
        if uncacheable_member in entry:
            uncacheable_steps.add(name)
        position += len(line)
    return uncacheable_steps if line == b"}" else None
