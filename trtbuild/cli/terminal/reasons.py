"""Why a step runs, in a few words: what changed, from what to what, as far as that means something to a person."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import ABSENT

#: A value that is longer than this is not shown in a short reason.
SHORT = 24

_DIGEST = re.compile(r"[0-9a-f]{40,}")

_WORDS = {"new": "new", "evicted": "no longer in the cache", "forced": "forced"}


def brief(reason: Reason) -> str:
    """One short line."""
    return brief_of(reason.to_json())


def brief_of(reason: Mapping[str, Any]) -> str:
    """As `brief`, for a reason as documents have it."""
    code = str(reason["code"])
    changed: Sequence[Mapping[str, str]] = reason["changed"]
    if code in _WORDS:
        return _WORDS[code]
    if code != "changed" or not changed:
        return str(reason["text"])
    more = f" (+{len(changed) - 1})" if len(changed) > 1 else ""
    return _change(changed[0]) + more


def _change(change: Mapping[str, str]) -> str:
    kind, _, name = change["part"].partition(":")
    was, now = change["was"], change["now"]
    subject = {"file": name, "link": name, "listing": f"{name}/", "distribution": name, "environment": f"${name}"}.get(
        kind, change.get("name") or change["part"]
    )
    if was in (ABSENT, "absent"):
        return f"{subject} is new"
    if now in (ABSENT, "absent"):
        return f"{subject} is gone"
    if max(len(was), len(now)) > SHORT:
        return f"{subject.removesuffix('.sha256')} changed"
    return f"{subject} {was} → {now}"


def fitted(text: str, width: int) -> str:
    """A short reason in at most `width` columns: first how many more parts changed is left out, then that they did."""
    for left_out in (r"$", r" \(\+\d+\)$", r" changed$"):
        text = re.sub(left_out, "", text)
        if len(text) <= width:
            return text
    return f"{text[: max(width - 1, 0)]}…"[:width]


def shortened(value: str, most: int = 70) -> str:
    """A value in one line: digests by their first digits, long text by its two ends."""
    if _DIGEST.fullmatch(value):
        return value[:12]
    text = _DIGEST.sub(lambda digest: digest[0][:12], value)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"
