"""The trail: a local copy of the chain links that the last plans followed, so that a chain is followed without reading it.

Rules
1. A link names the dependencies to observe next. Its key contains all observations before it. A link is written only
   once, so its content stays the same while its entry exists. So the store is asked only whether the entry exists. This
   request also marks the entry as used, so that it is not collected before the trace at the end of the chain.
2. The trail cannot change a result. A trace is found by the record at the end of the chain, whose recipe is compared with
   the current observations. A wrong link leads to no record, and so the step runs.
3. Links are stored in the order in which they were followed, so that one request to the store covers many of them.
4. The file may be deleted, and is replaced atomically. If two commands write it, the later one wins. Without the file
   every link is read.
5. It contains the links that the last command followed. Older links are kept while the total is at most `MAX_LINKS`.
6. A trail is valid for one trust policy only; with another policy, links are read again. Otherwise a build that has begun
   to sign would follow its unsigned links without signing them, and other machines could not find its traces.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trtbuild.atomic import replace_file
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.regular import read_regular

SCHEMA = "trtbuild.trail/1"
MAX_LINKS = 100_000

#: The most links in one request to the store.
AHEAD = 32

Named = Sequence[Dependency]


class Trail:
    """The dependencies that links name, by link key. The file is read at the first use; `save` writes the followed links.

    `policy` is a text that identifies the trust policy of this command (rule 6).
    """

    def __init__(self, state: Path, policy: str = "") -> None:
        self._path = state / "trail.json"
        self._policy = policy
        self._names: list[str] = []
        self._known: dict[str, list[int]] | None = None
        self._order: list[str] = []
        self._places: dict[str, int] = {}
        self._dependencies: dict[int, Dependency] = {}
        self._followed: dict[str, Named] = {}
        self._changed = False

    def links(self, key: str, present: Callable[[Sequence[str]], Collection[str]]) -> dict[str, Named]:
        """The link with this key and the links that were followed after it; empty for an unknown key.

        `present` returns which of some keys the store contains. Other links are left out.
        """
        known = self._load()
        place = self._places.get(key)
        if place is None:
            return {}
        found: dict[str, Named] = {}
        for name in present(self._order[place : place + AHEAD]):
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):  # `forget` has removed it
                found[name] = tuple(map(self._dependency, known[name]))
        return {name: named for name, named in found.items() if named}

    def follow(self, key: str, named: Named, *, read: bool) -> None:
        """Add a followed link. `read`: it was read from the store, because the trail did not contain it."""
        self._followed[key] = named
        self._changed = self._changed or read

    def forget(self, key: str) -> None:
        """Remove a link that is written again."""
        self._load().pop(key, None)
        self._places.pop(key, None)
        self._followed.pop(key, None)

    def clear(self) -> None:
        """Remove all links, because one differs from its entry in the store."""
        self._names, self._known, self._order = [], {}, []
        self._places.clear()
        self._followed.clear()
        self._changed = True

    def save(self) -> None:
        """Write the followed links. An error is ignored: a state directory that is not writable must not fail a command."""
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
        document = {"schema": SCHEMA, "believed": self._policy, "names": list(numbers), "links": links}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, separators=(",", ":")).encode(), mode=0o600)
            self._changed = False

    def _load(self) -> dict[str, list[int]]:
        if self._known is None:
            self._names, self._known = _read(self._path, self._policy)
            self._order = list(self._known)
            self._places = {key: place for place, key in enumerate(self._order)}
        return self._known

    def _dependency(self, number: int) -> Dependency:
        found = self._dependencies.get(number)
        if found is None:
            found = self._dependencies[number] = Dependency.from_part(self._names[number])
        return found


def _read(path: Path, policy: str) -> tuple[list[str], dict[str, list[int]]]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path))
        if isinstance(found, dict) and found.get("schema") == SCHEMA and found.get("believed", "") == policy:
            names, links = found.get("names"), found.get("links")
            if isinstance(names, list) and isinstance(links, dict) and all(type(name) is str for name in names):
                return names, links
    return [], {}
