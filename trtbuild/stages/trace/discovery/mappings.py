"""Find files that are mapped into this process. Some libraries read files by mapping them, without an audit event. This
module finds these files even if no wrapper (`wrappers`) exists for the library."""

from __future__ import annotations


def mapped_files() -> frozenset[str]:
    """The paths of the files that are mapped now; empty on systems other than Linux."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return frozenset()
    paths = (line.split(maxsplit=5)[5:] for line in lines)
    return frozenset(
        path[0] for path in paths if path and path[0].startswith("/") and not path[0].endswith("(deleted)")
    )
