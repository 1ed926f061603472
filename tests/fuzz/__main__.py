"""``python -m tests.fuzz -n 1000 --seed S``: build random modules, and compare each with eager PyTorch.

Each finding is printed with the seed of its case. ``--only CASE`` tries the case with this seed again. A finding is a
difference, a crash, an InternalError, or a case that takes too long. The exit status is 1 if there is a finding.

With ``--samples float32``, there are no random modules: each operator is tried with PyTorch's samples of this dtype. The
seed of a case is then the number of the operator, and ``-n`` and ``--seed`` choose operators: ``-n 100 --seed 500`` are
the operators 500 to 599.
"""

from __future__ import annotations

import argparse
import collections
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait

import torch

from tests.fuzz.children import MOST_CASES, Child
from tests.fuzz.operators import operators
from tests.fuzz.samples import try_samples
from tests.fuzz.trying import FINDINGS, Outcome, try_seed
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.trace.run import prepare

#: The number of case seeds for each ``--seed``, so that runs with different ``--seed`` have no common case.
CASES_PER_SEED = 1_000_000

#: The number of cases after which the progress is printed again.
_PROGRESS_CASES = 50


def run(
    seeds: Sequence[int], jobs: int, limit_s: float, try_one: Callable[[int], Outcome] | None = None
) -> Iterator[Outcome]:
    """The outcome of each case, in the order in which the cases end. Without `try_one`, the cases are random."""
    waiting = iter(seeds)
    children: list[Child] = []
    try:
        while True:
            while len(children) < jobs and (seed := next(waiting, None)) is not None:
                child = Child(try_one or try_seed)
                child.start_case(seed)
                children.append(child)
            if not children:
                return
            ready = wait([child.connection for child in children], timeout=1)
            for child in list(children):
                if child.connection in ready:
                    outcome = child.answer()
                elif child.is_overdue(limit_s):
                    outcome = child.stop(limit_s)
                else:
                    continue
                yield outcome
                seed = next(waiting, None) if child.alive and child.case_count < MOST_CASES else None
                if seed is None:
                    children.remove(child)
                    child.close()
                else:
                    child.start_case(seed)
    finally:
        for child in children:
            child.close()


def load_libraries() -> None:
    """Load libraries once, before the children are forked. This takes seconds."""
    torch.set_num_threads(1)
    prepare()
    decomposition_table()
    operators()


def outcome_text(outcome: Outcome) -> str:
    details = "\n".join(f"  {line}" for line in outcome.details)
    return f"seed {outcome.seed}: {outcome.verdict} {outcome.group}\n{outcome.case}\n{details}\n"


def counts_text(outcomes: Sequence[Outcome]) -> str:
    verdicts = collections.Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(f"{verdicts[name]} {name}" for name in ("built", "refused", "skipped", *FINDINGS))


def summary(outcomes: Sequence[Outcome]) -> str:
    """The counts, and up to three cases for each reason of a verdict other than ``built``."""
    lines = [counts_text(outcomes)]
    unchecked = sum(bool(outcome.unchecked) for outcome in outcomes)
    if unchecked:
        lines.append(f"{unchecked} have partitions that onnxruntime cannot run: only their types were compared")
    for verdict in ("refused", "skipped", *FINDINGS):
        groups: dict[str, list[int]] = {}
        for outcome in outcomes:
            if outcome.verdict == verdict:
                groups.setdefault(outcome.group, []).append(outcome.seed)
        for group, seeds in sorted(groups.items(), key=lambda entry: -len(entry[1])):
            lines.append(f"{verdict} {len(seeds):>4}  {group}  (seeds {', '.join(map(str, seeds[:3]))})")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n\n")[0])
    parser.add_argument("-n", type=int, help="number of cases (default: 1000; with --samples: all operators)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the cases; with --samples, operators (default: 0)")
    parser.add_argument(
        "--samples", metavar="DTYPE", choices=ELEMENT_TYPES, help="try the operators that have samples of this dtype"
    )
    parser.add_argument("--only", type=int, metavar="CASE", help="try one case again, by its own seed")
    parser.add_argument("-j", type=int, default=1, choices=(1, 2), help="processes at a time (default: 1)")
    parser.add_argument(
        "--limit", type=float, metavar="S", help="seconds for a case (default: 120; with --samples: 900)"
    )
    options = parser.parse_args(arguments)
    load_libraries()
    seeds: Sequence[int]
    if options.samples:
        try_one = functools.partial(try_samples, dtype=options.samples)
        seeds = range(len(operators()))[options.seed :][: options.n]
    else:
        try_one = try_seed
        first = options.seed * CASES_PER_SEED
        seeds = range(first, first + (options.n or 1000))
    if options.only is not None:
        seeds = [options.only]
    limit_s = options.limit or (900 if options.samples else 120)
    outcomes = []
    started = time.monotonic()
    for outcome in run(seeds, options.j, limit_s, try_one):
        outcomes.append(outcome)
        if outcome.verdict in FINDINGS or options.only is not None:
            print(outcome_text(outcome), flush=True)
        if len(outcomes) % _PROGRESS_CASES == 0:
            print(f"{len(outcomes)} of {len(seeds)}: {counts_text(outcomes)}", file=sys.stderr, flush=True)
    print(summary(outcomes))
    print(f"{len(outcomes)} cases in {time.monotonic() - started:.0f} s")
    return int(any(outcome.verdict in FINDINGS for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
