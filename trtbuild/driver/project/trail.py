"""The trail: a local copy of links, so that a plan need not read each link from the store.

A plan follows a chain of links to find the record of a trace (`core.recipes.chain`). Each link names the dependencies to
observe next, and its key contains all earlier observations.

Rules
1. A link is written only once, so its content stays the same while its entry in the store exists. So a command does not
   read the entry, but only asks the store whether the entry exists. This request also marks the entry as used. Otherwise
   garbage collection would delete the link earlier than the record of the trace.
2. The trail cannot change a result, because a record is used only if its recipe contains the current observations. A wrong
   link leads to no record, and so the step runs.
3. Links are stored in the order in which they were followed, so that one request to the store covers many of them.
4. The file is replaced atomically. If two commands write it, the later command wins. The file may be deleted. Then every
   link is read from the store.
5. The file contains the links that the last command followed. Older links are kept if the total is at most `MAX_LINKS`.
6. A trail is valid for one trust policy only. With another policy, links are read from the store again. Otherwise a build
   with a new signing key would follow its old, unsigned links without signing them. Then machines that trust only signed
   links could not find its traces. For the same reason, no trail is valid for a machine that checks signatures and has no
   key yet.
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

#: The largest number of links in one request to the store (rule 3).
MAX_REQUESTED_LINKS = 32

Dependencies = Sequence[Dependency]


class Trail:
    """Key of a link → the dependencies that the link names.

    The file is read at the first use, and `save` writes the links that were followed. `policy` is a text that identifies
    the trust policy of this command (rule 6).
    """

    def __init__(self, state: Path, policy: str = "") -> None:
        self._path = state / "trail.json"
        self._policy = policy
        #: The names of all dependencies in the file. Links have the positions of names in this list.
        self._dependency_names: list[str] = []
        #: Key of a link that was not followed yet → the positions of the names of its dependencies. None before the file is
        #: read.
        self._links: dict[str, list[int]] | None = None
        #: The keys of the links in the file, in the order of rule 3.
        self._ordered_keys: list[str] = []
        #: Key → its position in `_ordered_keys`.
        self._positions: dict[str, int] = {}
        #: Position of a name → the dependency with this name, if it was needed already.
        self._dependencies: dict[int, Dependency] = {}
        #: The links that this command has followed.
        self._followed: dict[str, Dependencies] = {}
        self._changed = False

    def links(self, key: str, find_present: Callable[[Sequence[str]], Collection[str]]) -> dict[str, Dependencies]:
        """Key → dependencies, of the link with this key and of the next links; empty if the key is not known.

        `find_present` gets keys, and returns those that the store contains. All other links are left out.
        """
        all_links = self._load()
        position = self._positions.get(key)
        if position is None:
            return {}
        found: dict[str, Dependencies] = {}
        for link_key in find_present(self._ordered_keys[position : position + MAX_REQUESTED_LINKS]):
            # the link may have been followed or removed already, and the file may be invalid
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
                found[link_key] = tuple(map(self._dependency, all_links[link_key]))
        return {link_key: dependencies for link_key, dependencies in found.items() if dependencies}

    def follow(self, key: str, dependencies: Dependencies, *, read: bool) -> None:
        """Add a link that was followed, and the dependencies that it names.

        `read` means that the link was read from the store, because the trail did not contain it.
        """
        self._followed[key] = dependencies
        self._load().pop(key, None)
        self._changed = self._changed or read

    def forget(self, key: str) -> None:
        """Remove a link, because the caller is about to write it to the store."""
        self._load().pop(key, None)
        self._positions.pop(key, None)
        self._followed.pop(key, None)

    def clear(self) -> None:
        """Remove all links. A command calls this if a link differs from its entry in the store."""
        self._dependency_names, self._links, self._ordered_keys = [], {}, []
        self._positions.clear()
        self._followed.clear()
        self._changed = True

    def save(self) -> None:
        """Write the followed links. Errors are ignored, because commands also work without a writable state directory."""
        if not self._changed:
            return
        numbers: dict[str, int] = {}
        links = {
            key: [numbers.setdefault(dependency.part, len(numbers)) for dependency in dependencies]
            for key, dependencies in list(self._followed.items())  # a thread of an interrupted build may add links
        }
        older_links = self._load()
        if len(links) + len(older_links) <= MAX_LINKS:
            for key in [key for key in older_links if key not in links]:
                with contextlib.suppress(IndexError, TypeError):
                    links[key] = [
                        numbers.setdefault(self._dependency_names[number], len(numbers)) for number in older_links[key]
                    ]
        document = {"schema": SCHEMA, "believed": self._policy, "names": list(numbers), "links": links}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, separators=(",", ":")).encode(), mode=0o600)
            self._changed = False

    def _load(self) -> dict[str, list[int]]:
        if self._links is None:
            self._dependency_names, self._links = _read(self._path, self._policy)
            self._ordered_keys = list(self._links)
            self._positions = {key: position for position, key in enumerate(self._ordered_keys)}
        return self._links

    def _dependency(self, number: int) -> Dependency:
        dependency = self._dependencies.get(number)
        if dependency is None:
            dependency = self._dependencies[number] = Dependency.from_part(self._dependency_names[number])
        return dependency


def _read(path: Path, policy: str) -> tuple[list[str], dict[str, list[int]]]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads(read_regular(path))
        if isinstance(document, dict) and document.get("schema") == SCHEMA and document.get("believed", "") == policy:
            names, links = document.get("names"), document.get("links")
            if isinstance(names, list) and isinstance(links, dict) and all(type(name) is str for name in names):
                return names, links
    return [], {}
