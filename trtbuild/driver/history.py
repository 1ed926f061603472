"""What each step of this project last was: its recipe, and why it last ran. Deletable; it decides nothing but wording.

One JSON file in ``.trtbuild/``, replaced atomically. Two builds of different models at once merge their entries.
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

from trtbuild.core.recipe import Recipe


class History:
    """Last recipes and reasons by step id. Reads once; `save` merges what `note` collected."""

    def __init__(self, state: Path) -> None:
        self._path = state / "history.json"
        self._entries = _read(self._path)
        self._noted: dict[str, dict[str, Any]] = {}

    def recipe(self, step: str) -> Recipe | None:
        """The recipe that the step had when it was last built or found."""
        entry = self._entries.get(step)
        if entry is None:
            return None
        try:
            return Recipe.from_json(entry["recipe"])
        except (KeyError, ValueError):
            return None

    def last_run(self, step: str) -> Mapping[str, Any] | None:
        """``{"reason", "duration_s"}`` of the step's last run here, or None."""
        found = self._entries.get(step, {}).get("ran")
        return found if isinstance(found, dict) else None

    def uncacheable(self, step: str) -> str | None:
        """Why the step's last result was not kept, or None."""
        found = self._entries.get(step, {}).get("uncacheable")
        return str(found) if found else None

    def note(
        self, step: str, recipe: Recipe, ran: Mapping[str, Any] | None = None, uncacheable: str | None = None
    ) -> None:
        """Remember a step's recipe; `ran` when it was run just now."""
        old = self._entries.get(step, {}).get("ran")
        entry: dict[str, Any] = {"recipe": recipe.to_json(), "ran": dict(ran) if ran else old}
        if uncacheable:
            entry["uncacheable"] = uncacheable
        self._noted[step] = entry

    def save(self) -> None:
        """Write down what was noted. A state directory that cannot be written is no reason to fail a build."""
        changed = {step: entry for step, entry in self._noted.items() if self._entries.get(step) != entry}
        if not changed:
            return
        with contextlib.suppress(OSError), _locked(self._path):
            merged = {**_read(self._path), **changed}
            descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".history-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(merged, file, separators=(",", ":"))
            Path(temporary).replace(self._path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
