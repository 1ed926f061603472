"""The result of ``trtbuild cache verify --rebuild`` as text."""

from __future__ import annotations

from collections import Counter

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count
from trtbuild.driver.cache.documents import Rebuilt, RebuiltEngine


def compared(rebuilt: Rebuilt) -> list[str]:
    """The number of equal engines, the different engines, and the reasons why other engines were not checked."""
    sample = f"{rebuilt.sampled:,} of {count(rebuilt.engines, 'engine')} built again (--seed {rebuilt.seed})"
    different = rebuilt.different
    if different:
        lines = [f"{terminal.red('different')}: {count(len(different), 'engine')} of {sample}"]
    elif rebuilt.same:
        lines = [f"{terminal.green('equal')}: {sample}, byte for byte"]
    else:
        lines = [f"{terminal.yellow('nothing could be compared')}: {sample}"]
    for each in different:
        lines += _difference(each)
    reasons = Counter(each.reason for each in rebuilt.unchecked)
    return [*lines, *(f"  {number:,} not checked: {reason}" for reason, number in reasons.most_common())]


def _difference(each: RebuiltEngine) -> list[str]:
    rows = [
        ("    in the cache", each.recorded),
        ("    built again", each.rebuilt),
        ("    built by", each.builder or "(unknown)"),
        ("    signed by", ", ".join(each.signed_by) or "nobody"),
    ]
    hints = ["its record was moved to the quarantine"] if each.quarantined else []
    hints += [f"remove ac/{each.key} from remote {name}" for name in each.remotes]
    hints.append("trtbuild build then builds the engine and its packages again")
    return [f"  {each.step}", *aligned(rows), *(f"    → {hint}" for hint in hints)]
