"""Find the files that are mapped into the memory of this process.

Some libraries map a file instead of reading it. Python has no audit event for this. `mapped_files` also finds the files of
libraries that the module `wrappers` does not know. The ``-shm`` files that SQLite maps are left out, because their content
is not kept.
"""

from __future__ import annotations


def mapped_files() -> frozenset[str]:
    """The paths of the files that are mapped now, without those of SQLite; empty on systems other than Linux."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return frozenset()
    paths = (line.split(maxsplit=5)[5:] for line in lines)
    return frozenset(
        path[0] for path in paths if path and path[0].startswith("/") and not path[0].endswith(("(deleted)", "-shm"))
    )
