"""Suggestions for misspelled names, for messages."""

from __future__ import annotations

from collections.abc import Iterable

#: The largest number of names that a message lists. A project may have thousands of names.
MAX_LISTED = 16


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`, or None if no name is similar. Case is ignored."""
    import difflib  # only needed for messages

    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, known: Iterable[str], noun: str) -> str:
    """A hint such as ``did you mean 'ada'? the targets are: ada, hopper``. `noun` is a plural such as ``targets``."""
    names = list(known)
    if not names:
        return f"there are no {noun}"
    similar = nearest(name, names)
    listed = ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
    allowed = f"the {noun} are: {listed}"
    return f"did you mean {similar!r}? {allowed}" if similar is not None else allowed
