"""What building engines once more has shown, for a person."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count

Document = dict[str, Any]


def compared(found: Document) -> list[str]:
    """How many engines are what the cache says, which are not, and why others were not looked at."""
    rebuilt = found["rebuilt"]
    sample = f"{rebuilt['sampled']:,} of {count(rebuilt['engines'], 'engine')} built again (--seed {rebuilt['seed']})"
    different = rebuilt["different"]
    if different:
        lines = [f"{terminal.red('different')}: {count(len(different), 'engine')} of {sample}"]
    elif rebuilt["same"]:
        lines = [f"{terminal.green('equal')}: {sample}, byte for byte"]
    else:
        lines = [f"{terminal.yellow('nothing could be compared')}: {sample}"]
    for each in different:
        lines += _difference(each)
    reasons = Counter(each["reason"] for each in rebuilt["unchecked"])
    return [*lines, *(f"  {number:,} not checked: {reason}" for reason, number in reasons.most_common())]


def _difference(each: Document) -> list[str]:
    rows = [
        ("    in the cache", each["recorded"]),
        ("    built again", each["rebuilt"]),
        ("    built by", each["builder"] or "(unknown)"),
        ("    signed by", ", ".join(each["signed_by"]) or "nobody"),
    ]
    hints = ["its record here was put in quarantine"] if each["quarantined"] else []
    hints += [f"remove ac/{each['key']} from remote {name}" for name in each["remotes"]]
    hints.append("trtbuild build then makes the engine, and the packages that hold it, anew")
    return [f"  {each['step']}", *aligned(rows), *(f"    → {hint}" for hint in hints)]
