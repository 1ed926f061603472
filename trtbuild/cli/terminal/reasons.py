"""The reason why a step runs, as a short text, such as ``torch 2.9.0 → 2.13.0`` or ``models/vit.py changed``."""

from __future__ import annotations

import re

from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import ABSENT, Change

#: A short reason shows the old and the new value if both have at most this number of characters.
MOST_VALUE_LENGTH = 24

_DIGEST = re.compile(r"[0-9a-f]{40,}")

_WORDS = {"new": "new", "evicted": "no longer in the cache", "forced": "forced"}


def short_reason(reason: Reason) -> str:
    """The reason in one line.

    For a changed recipe: the first changed part, and the number of the others. Otherwise a word like ``new``, or the text
    of `reason`."""
    if reason.code in _WORDS:
        return _WORDS[reason.code]
    if reason.code != "changed" or not reason.changed:
        return reason.text
    more = f" (+{len(reason.changed) - 1})" if len(reason.changed) > 1 else ""
    return _change_text(reason.changed[0]) + more


def _change_text(change: Change) -> str:
    kind, _, name = change.part.partition(":")
    was, now = change.was, change.now
    subject = {"file": name, "link": name, "listing": f"{name}/", "distribution": name, "environment": f"${name}"}.get(
        kind, change.name or change.part
    )
    # ABSENT: the recipe has no such part; "absent": the file or environment variable did not exist
    if kind == "import" and {was, now} != {ABSENT, "absent"}:
        return f"the file of import {name} changed"
    if kind == "link" and "absent" in (was, now):
        return f"{name} is {'a' if was == 'absent' else 'not a'} symbolic link now"
    if was in (ABSENT, "absent"):
        return f"{subject} is new"
    if now in (ABSENT, "absent"):
        return f"{subject} is gone"
    if max(len(was), len(now)) > MOST_VALUE_LENGTH:
        return f"{subject.removesuffix('.sha256')} changed"
    return f"{subject} {was} → {now}"


def shorten_to_width(text: str, width: int) -> str:
    """A short reason in at most `width` columns: ``w1 changed (+12)``, ``w1 changed``, ``w1`` or ``w…``."""
    without_count = re.sub(r" \(\+\d+\)$", "", text)
    shortest = without_count.removesuffix(" changed")
    for candidate in (text, without_count, shortest):
        if len(candidate) <= width:
            return candidate
    return f"{shortest[: max(width - 1, 0)]}…"[:width]


def shorten(value: str, most: int = 70) -> str:
    """A value with the first 12 digits of each digest. The middle of a long text is left out."""
    if _DIGEST.fullmatch(value):
        return value[:12]
    text = _DIGEST.sub(lambda digest: digest[0][:12], value)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"
