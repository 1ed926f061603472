"""Write make rules without recipes, as ``gcc -MMD -MP`` does.

How GNU make 4.3 reads names (tests/driver/up_to_date/test_make_rules.py checks these statements with make itself)
1. A space, ``#``, ``:`` and the wildcards ``*?[`` need a backslash before them. ``$`` has to be doubled.
2. ``%`` in a target makes a pattern, and needs a backslash. In a prerequisite it is an ordinary character.
3. A backslash in a name is an ordinary character, unless the backslash is at the end, or the name has a character that
   rule 1 or 2 escapes with a backslash. In these two cases the name cannot be written, because the number of backslashes
   depends on how often make reads the name.
4. If the name of a prerequisite cannot be written (`can_be_written`), the target depends on `ALWAYS`, a file that never
   exists. So make runs the user's recipe, `trtbuild build`, each time. This build runs no step if nothing changed, and make
   never uses an outdated engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: A file that never exists, so that each target that depends on it is always out of date.
ALWAYS = "trtbuild-always"

#: Matches a name that cannot be written. In make, ``=`` begins the value of a variable, ``;`` a recipe and ``|`` order-only
#: prerequisites. ``(…)`` is a member of an archive, and ``&`` at the end means grouped targets. Control characters, and a
#: space at the end of a name, cannot be escaped. The alternatives with a backslash are rule 3.
_UNWRITABLE = re.compile(r"[=;|()\x00-\x1f\x7f]|[& ]$|\\.*[ #:*?\[%]|[ #:*?\[%].*\\|\\$")

_ESCAPED_CHARACTERS = {"target": " #:*?[%", "prerequisite": " #:*?["}


def can_be_written(name: str) -> bool:
    """Whether a makefile can contain this file name."""
    return bool(name) and _UNWRITABLE.search(name) is None


def escape(name: str, place: str) -> str:
    """Return a name as a makefile contains it (rules 1 and 2). `place` is ``target`` or ``prerequisite``."""
    if name.startswith("~"):
        name = f"./{name}"  # make expands a leading ~ to a home directory
    text = "".join(f"\\{letter}" if letter in _ESCAPED_CHARACTERS[place] else letter for letter in name)
    return text.replace("$", "$$")


def rules_text(targets: Sequence[str], prerequisites: Iterable[str], *, always: bool = False) -> str:
    """Return a rule by which each of `targets` depends on all `prerequisites`, and an empty rule for each prerequisite.

    Because of the empty rules, a deleted prerequisite is not an error, but makes the targets out of date. With `always` the
    targets are always out of date. Raises ValueError for a target whose name cannot be written.
    """
    for target in targets:
        if not can_be_written(target):
            raise ValueError(f"make cannot have a target with the name {target!r}")
    unique = list(dict.fromkeys(prerequisites))
    writable = [name for name in unique if can_be_written(name)]
    if always or len(writable) < len(unique):
        writable.append(ALWAYS)
    target_names = " ".join(escape(target, "target") for target in targets)
    lines = [" \\\n  ".join([f"{target_names}:", *(escape(name, "prerequisite") for name in writable)])]
    lines += [f"{escape(name, 'target')}:" for name in writable]
    return "\n\n".join(lines) + "\n"
