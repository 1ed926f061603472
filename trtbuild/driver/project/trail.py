"""Where the last plans of this project were led: the links of their chains, so that a chain is followed without reading it.

Rules
1. A link is named by its key, which is made of all that was seen before it, and says what to look at next. It is
   write-once, so what was once read under a key is there as long as an entry is: that alone is asked of the store
   (which touches it, so that it is not collected before the trace that it leads to).
2. It decides nothing. A link says only where to look: a trace is found by the record at the end, whose recipe is
   compared in full with what is there now. Whatever stands here, a wrong name leads to no record, and so to a run.
3. Links stand in the order in which they were followed, so that the store is asked for many at once.
4. Deletable, and replaced atomically; of two commands at once the later one's stands. Without it every link is read.
5. It holds what the last command followed, and what those before it did as long as all are at most `MAX_LINKS`.
6. It goes by what counts: a link that was read when others were believed is read again. Else a build that has just begun
   to sign would follow its unsigned links, sign none of them, and leave a trace that nobody else is led to.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trtbuild.core.recipes.dependency import Dependency
from trtbuild.regular import read_regular

SCHEMA = "trtbuild.trail/1"
MAX_LINKS = 100_000

#: How many links the store is asked for at once.
AHEAD = 32

Named = Sequence[Dependency]


class Trail:
    """What links name, by their keys. Reads its file when it is first asked; `save` writes what was followed.

    `believed` stands for whom this command believes (rule 6).
    """

    def __init__(self, state: Path, believed: str = "") -> None:
        self._path = state / "trail.json"
        self._believed = believed
        self._names: list[str] = []
        self._known: dict[str, list[int]] | None = None
        self._order: list[str] = []
        self._places: dict[str, int] = {}
        self._dependencies: dict[int, Dependency] = {}
        self._followed: dict[str, Named] = {}
        self._changed = False

    def links(self, key: str, present: Callable[[Sequence[str]], Collection[str]]) -> dict[str, Named]:
        """What the link with this key named when it was last read, and the ones that were followed after it; only those
        which the store has, by `present`. Nothing where it is not known."""
        known = self._load()
        place = self._places.get(key)
        if place is None:
            return {}
        found: dict[str, Named] = {}
        for name in present(self._order[place : place + AHEAD]):
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):  # it was forgotten meanwhile
                found[name] = tuple(map(self._dependency, known[name]))
        return {name: named for name, named in found.items() if named}

    def follow(self, key: str, named: Named, *, read: bool) -> None:
        """Remember a link that was followed; `read` says that it was read, and not known from here."""
        self._followed[key] = named
        self._changed = self._changed or read

    def forget(self, key: str) -> None:
        """A link that is written anew."""
        self._load().pop(key, None)
        self._places.pop(key, None)
        self._followed.pop(key, None)

    def distrust(self) -> None:
        """Forget everything: a link named something else than what stands here."""
        self._names, self._known, self._order = [], {}, []
        self._places.clear()
        self._followed.clear()
        self._changed = True

    def save(self) -> None:
        """Write down what was followed. A state directory that cannot be written is no reason to fail a command."""
        if not self._changed:
            return
        numbers: dict[str, int] = {}
        links = {
            key: [numbers.setdefault(dependency.part, len(numbers)) for dependency in named]
            for key, named in self._followed.items()
        }
        older = self._load()
        if len(links) + len(older) <= MAX_LINKS:
            for key in [key for key in older if key not in links]:
                with contextlib.suppress(IndexError, TypeError):
                    links[key] = [numbers.setdefault(self._names[number], len(numbers)) for number in older[key]]
        document = {"schema": SCHEMA, "believed": self._believed, "names": list(numbers), "links": links}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".trail-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file, separators=(",", ":"))
            Path(temporary).replace(self._path)
            self._changed = False

    def _load(self) -> dict[str, list[int]]:
        if self._known is None:
            self._names, self._known = _read(self._path, self._believed)
            self._order = list(self._known)
            self._places = {key: place for place, key in enumerate(self._order)}
        return self._known

    def _dependency(self, number: int) -> Dependency:
        found = self._dependencies.get(number)
        if found is None:
            found = self._dependencies[number] = Dependency.from_part(self._names[number])
        return found


def _read(path: Path, believed: str) -> tuple[list[str], dict[str, list[int]]]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path))
        if isinstance(found, dict) and found.get("schema") == SCHEMA and found.get("believed", "") == believed:
            names, links = found.get("names"), found.get("links")
            if isinstance(names, list) and isinstance(links, dict) and all(type(name) is str for name in names):
                return names, links
    return [], {}
