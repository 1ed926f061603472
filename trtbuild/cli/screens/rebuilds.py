"""The result of ``trtbuild cache verify --rebuild`` as text."""

from __future__ import annotations

from collections import Counter

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count
from trtbuild.driver.cache.documents import Rebuilt, RebuiltEngine


def rebuild_lines(rebuilt: Rebuilt) -> list[str]:
    sample_text = f"{rebuilt.sampled:,} of {count(rebuilt.engines, 'engine')} built again (--seed {rebuilt.seed})"
    different = rebuilt.different
    if different:
        lines = [f"{terminal.red('different')}: {count(len(different), 'engine')} of {sample_text}"]
    elif rebuilt.same:
        lines = [f"{terminal.green('equal')}: {sample_text}, byte for byte"]
    else:
        lines = [f"{terminal.yellow('nothing could be compared')}: {sample_text}"]
    for engine in different:
        lines += _difference(engine)
    reasons = Counter(engine.reason for engine in rebuilt.unchecked)
    return [*lines, *(f"  {number:,} not checked: {reason}" for reason, number in reasons.most_common())]


def _difference(engine: RebuiltEngine) -> list[str]:
    rows = [
        ("    in the cache", engine.recorded),
        ("    built again", engine.rebuilt),
        ("    built by", engine.builder or "(unknown)"),
        ("    signed by", ", ".join(engine.signed_by) or "nobody"),
    ]
    hints = ["its record was moved to the quarantine"] if engine.quarantined else []
    hints += [f"remove ac/{engine.key} from remote {name}" for name in engine.remotes]
    hints.append("trtbuild build builds the engine and its packages again")
    return [f"  {engine.step}", *align_rows(rows), *(f"    → {hint}" for hint in hints)]
