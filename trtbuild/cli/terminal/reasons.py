"""Short texts of the reason why a step runs: the changed part, with its old and new value if both are short."""

from __future__ import annotations

import re

from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import ABSENT, Change

#: A value that is longer than this is not shown in a short reason.
SHORT = 24

_DIGEST = re.compile(r"[0-9a-f]{40,}")

_WORDS = {"new": "new", "evicted": "no longer in the cache", "forced": "forced"}


def short_reason(reason: Reason) -> str:
    """The reason in one short line."""
    if reason.code in _WORDS:
        return _WORDS[reason.code]
    if reason.code != "changed" or not reason.changed:
        return reason.text
    more = f" (+{len(reason.changed) - 1})" if len(reason.changed) > 1 else ""
    return _change(reason.changed[0]) + more


def _change(change: Change) -> str:
    kind, _, name = change.part.partition(":")
    was, now = change.was, change.now
    subject = {"file": name, "link": name, "listing": f"{name}/", "distribution": name, "environment": f"${name}"}.get(
        kind, change.name or change.part
    )
    # ABSENT: the recipe has no such part; "absent": the file or environment variable did not exist
    if kind == "import" and {was, now} != {ABSENT, "absent"}:
        return f"the file of import {name} changed"
    if was in (ABSENT, "absent"):
        return f"{subject} is new"
    if now in (ABSENT, "absent"):
        return f"{subject} is gone"
    if max(len(was), len(now)) > SHORT:
        return f"{subject.removesuffix('.sha256')} changed"
    return f"{subject} {was} → {now}"


def shorten_to_width(text: str, width: int) -> str:
    """A short reason in at most `width` columns. If necessary, the count of other parts is left out, then "changed"."""
    without_count = re.sub(r" \(\+\d+\)$", "", text)
    shortest = without_count.removesuffix(" changed")
    for candidate in (text, without_count, shortest):
        if len(candidate) <= width:
            return candidate
    return f"{shortest[: max(width - 1, 0)]}…"[:width]


def shorten(value: str, most: int = 70) -> str:
    """The short form of a value: the first 12 digits of a digest, and the two ends of a long text."""
    if _DIGEST.fullmatch(value):
        return value[:12]
    text = _DIGEST.sub(lambda digest: digest[0][:12], value)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"
