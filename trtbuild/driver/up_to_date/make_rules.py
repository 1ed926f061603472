"""Rules of a makefile without recipes, as ``gcc -MD -MP`` writes them: text that make includes.

How GNU make reads names (4.3, measured by tests/driver/test_make_rules.py with make itself)
1. Blank, ``#``, ``:`` and the wildcards ``*?[`` take a backslash, ``$`` is doubled.
2. ``%`` makes a pattern of a target and takes a backslash there; among prerequisites it is a letter like any other.
3. A backslash is itself in a name that has none of these and does not end with it. In others, how often it has to be
   doubled depends on how often make reads the name; such names cannot be said.
4. Some names cannot be said at all (`can_be_said`). What depends on one of them depends on `ALWAYS` instead: a name that
   no file has, so the recipe runs each time. That costs a build in which nothing runs, never a stale engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: A prerequisite that is never there, and so always out of date.
ALWAYS = "trtbuild-always"

#: ``=`` makes a variable, ``;`` a recipe, ``|`` order-only prerequisites, ``(…)`` a member of an archive; other blanks end
#: a line or a name and cannot be escaped, nor can one at the end of a name, before a line's end; and rule 3.
_UNSAYABLE = re.compile(r"[=;|()\x00-\x1f\x7f]|[& ]$|\\.*[ #:*?\[%]|[ #:*?\[%].*\\|\\$")

_SPECIAL = {"target": " #:*?[%", "prerequisite": " #:*?["}


def can_be_said(name: str) -> bool:
    """Whether make can be told of a file of this name."""
    return bool(name) and _UNSAYABLE.search(name) is None


def escaped(name: str, place: str) -> str:
    """A name as a ``target`` or a ``prerequisite`` (rules 1 and 2)."""
    if name.startswith("~"):
        name = f"./{name}"  # else somebody's home
    text = "".join(f"\\{letter}" if letter in _SPECIAL[place] else letter for letter in name)
    return text.replace("$", "$$")


def rules(targets: Sequence[str], prerequisites: Iterable[str], *, always: bool = False) -> str:
    """One rule: each of `targets` depends on all `prerequisites`; and for each of these a rule of its own, so that one that
    is deleted makes what depends on it out of date and not impossible. `always` makes it out of date each time.

    Raises ValueError for a target that cannot be said.
    """
    for target in targets:
        if not can_be_said(target):
            raise ValueError(f"make cannot have a target of the name {target!r}")
    unique = list(dict.fromkeys(prerequisites))
    named = [name for name in unique if can_be_said(name)]
    if always or len(named) < len(unique):
        named.append(ALWAYS)
    head = " ".join(escaped(target, "target") for target in targets)
    lines = [" \\\n  ".join([f"{head}:", *(escaped(name, "prerequisite") for name in named)])]
    lines += [f"{escaped(name, 'target')}:" for name in named]
    return "\n\n".join(lines) + "\n"
