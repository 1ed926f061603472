"""Injects a kill or an error at each writing system call of an operation, and checks the state afterwards.

``python -m tests.faults.enumeration kill`` (or ``error``) tries all calls, and prints the number of delivered faults. `make
test` tries all kills of local operations, some kills of operations with a remote (tests/faults/test_syscalls.py), and some
errors (tests/store/local/test_injected_faults.py). With ``TRTBUILD_KILLS=100`` or more, it tries all kills and errors.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.operations import OPERATIONS, Operation, State, assert_clean, assert_whole, state
from tests.faults.remote_operations import REMOTE_OPERATIONS, assert_shared_is_clean, assert_shared_is_whole
from tests.faults.syscalls import Call, Outcome, one_thread, outcome_of, traced
from trtbuild.store.local import locks

ERRORS = ("ENOSPC", "EROFS", "EIO", "EDQUOT", "EACCES")

#: Modules whose thread pools are replaced by one thread, so that the order of the calls is fixed.
_THREADED = (
    "trtbuild.store.local.blobs",
    "trtbuild.store.local.writing",
    "trtbuild.store.layers.fetching",
    "trtbuild.store.remote.files",
)

ALL = {**OPERATIONS, **REMOTE_OPERATIONS}

#: The exceptions that an operation may raise after an injected error in the store or in a remote.
_ALLOWED_EXCEPTIONS = ("StoreUnavailable", "RemoteFull", "RemoteRefused", "RemoteDown", "RemoteLied", "RemoteFault")


@dataclass
class Tally:
    """The results for an operation. `findings` are failed checks."""

    operation: str
    calls: int = 0
    #: System call → the number of faults that were delivered at it.
    delivered: Counter[str] = field(default_factory=Counter)
    #: ``result`` or the name of an exception → the number of runs with an injected error that ended in this way.
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.delivered.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "calls": self.calls,
            "delivered": dict(self.delivered),
            "outcomes": dict(self.outcomes),
            "findings": self.findings,
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(self.delivered.items()))
        outcomes = f"; {dict(self.outcomes)}" if self.outcomes else ""
        wrong = "".join(f"\n    {finding}" for finding in self.findings)
        text = f"{self.operation}: {self.calls} writing calls, {self.total} faults delivered ({kinds}){outcomes}"
        return f"{text} in {self.duration_s:.1f} s{wrong}"


class Enumeration:
    """One operation, with its calls and its results in a run without faults."""

    def __init__(self, name: str, operation: Operation, folder: Path) -> None:
        self.tally = Tally(name)
        self._operation = operation
        self._folder = folder
        self._template = folder / "template"
        self._template.mkdir()
        operation.prepare(self._template)
        with self._fresh_copy() as copy:
            outcome_of(operation.run, copy.path)  # imports all modules before children are forked
        with self._fresh_copy() as copy:
            self._before: State = state(copy.path)
            undisturbed = traced(operation.run, copy.path)
            assert "result" in undisturbed.report, undisturbed.report
            self._result = undisturbed.report["result"]
            self._after = state(copy.path)
            self._repeat(copy.path)
        self.calls: Sequence[Call] = undisturbed.calls
        self.tally.calls = len(self.calls)

    def kill(self, call: Call) -> None:
        """Kill a child just before `call`, and check the state afterwards."""
        with self._fresh_copy() as copy:
            outcome = traced(self._operation.run, copy.path, f"{call.name}:signal=KILL:when={call.number}")
            self._record_findings(call, lambda: self._after_kill(call, outcome, copy.path))

    def fail(self, call: Call, error: str) -> None:
        """Let `call` fail with `error`, and check the result of the operation and the state afterwards."""
        with self._fresh_copy() as copy:
            injection = f"{call.name}:error={error}:when={call.number}"
            outcome = traced(self._with_and_without_fault, copy.path, injection)
            self._record_findings(f"{error} at {call}", lambda: self._after_error(call, outcome, copy.path))

    def _after_kill(self, call: Call, outcome: Outcome, folder: Path) -> None:
        assert outcome.killed, f"the child was not killed: {outcome.status} {outcome.log[-100:]}"
        assert outcome.report is None, "the child ended before the kill"
        self.tally.delivered[call.name] += 1
        self._check_files(folder, may_be_damaged=self._operation.starts_damaged)
        self._repeat(folder)

    def _after_error(self, call: Call, outcome: Outcome, folder: Path) -> None:
        assert outcome.tampered, f"nothing was injected: {outcome.log[-100:]}"
        self.tally.delivered[call.name] += 1
        assert outcome.report is not None, f"the child died: {outcome.status}"
        report, second, locks_held = outcome.report["result"]
        self.tally.outcomes[report.get("error", "result")] += 1
        if "error" in report:
            is_about_an_exported_file = report["error"] in ("OSError", "PermissionError") and "/copy/out" in call.text
            assert is_about_an_exported_file or report["error"] in _ALLOWED_EXCEPTIONS, (
                f"the operation raises {report['error']}: {report['text']}"
            )
            if report["error"] in ("StoreUnavailable", "RemoteFull", "RemoteRefused"):
                assert report["hint"], f"no hint: {report['text']}"
        else:
            assert self._operation.accepts(report["result"], self._result), f"the operation returns {report['result']}"
        assert locks_held == 0, f"{locks_held} descriptors of locks are left open"
        assert second == {"result": self._result}, f"the second run in the same process gives {second}"
        self._check_files(folder, may_be_damaged=self._operation.starts_damaged)
        self._repeat(folder)

    def _with_and_without_fault(self, folder: Path) -> object:
        """The outcomes of a run with the fault and of a run without it, and the number of locks held between them."""
        first = outcome_of(self._operation.run, folder)
        locks_held = len(locks._open_descriptors)
        return first, outcome_of(self._operation.run, folder), locks_held

    def _repeat(self, folder: Path) -> None:
        """Run the operation again, without a fault. Check its result and its files, and that leftovers can be removed."""
        second = outcome_of(self._operation.run, folder)
        assert second == {"result": self._result}, f"the second run without a fault gives {second}"
        self._check_files(folder, may_be_damaged=False)
        assert_clean(folder)
        assert_shared_is_clean(folder)

    def _check_files(self, folder: Path, *, may_be_damaged: bool) -> None:
        assert_whole(folder, self._before, self._after, may_be_damaged=may_be_damaged)
        assert_shared_is_whole(folder, may_be_damaged=may_be_damaged)

    def _record_findings(self, fault: object, examine: Callable[[], None]) -> None:
        try:
            examine()
        except AssertionError as finding:
            self.tally.findings.append(f"{fault} → {finding}")

    def _fresh_copy(self) -> _TemporaryCopy:
        return _TemporaryCopy(self._template, self._folder / "copy")


class _TemporaryCopy:
    """A temporary copy of the template, including the times of its files."""

    def __init__(self, template: Path, path: Path) -> None:
        self._template, self.path = template, path

    def __enter__(self) -> _TemporaryCopy:
        shutil.copytree(self._template, self.path)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def spread(items: Sequence[Any], at_most: int) -> list[Any]:
    """At most `at_most` of `items`, evenly spread: among them the first and, if `at_most` is above 1, the last one."""
    if len(items) <= at_most:
        return list(items)
    return [items[round(number * (len(items) - 1) / max(at_most - 1, 1))] for number in range(at_most)]


def _folder_in_memory() -> str | None:
    """A folder in memory, if there is one. A kill has the same effect there as on a disk, and a sync is cheap."""
    folder = "/dev/shm"
    try:
        return folder if shutil.disk_usage(folder).free > 100 << 20 and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def enumerate_faults(fault_kind: str, name: str, at_most: int = 1 << 30) -> Tally:
    """Inject at most `at_most` faults at the calls of the operation `name`. `fault_kind` is `kill` or `error`."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="trtbuild-calls-", dir=_folder_in_memory()) as scratch,
        one_thread(*_THREADED),
    ):
        enumeration = Enumeration(name, ALL[name], Path(scratch))
        for call, error in spread(list(possible_faults(fault_kind, enumeration.calls, at_most)), at_most):
            if fault_kind == "kill":
                enumeration.kill(call)
            else:
                enumeration.fail(call, error)
        enumeration.tally.duration_s = time.monotonic() - began
        return enumeration.tally


def possible_faults(fault_kind: str, calls: Sequence[Call], at_most: int) -> Iterator[tuple[Call, str]]:
    """Yield pairs of a call and an error.

    If `fault_kind` is ``error`` and `at_most` allows it, each call gets every error. Otherwise each call gets one error:
    the first call gets the first error, and so on. A kill ignores the error.
    """
    for number, call in enumerate(calls):
        if fault_kind == "error" and len(calls) * len(ERRORS) <= at_most:
            yield from ((call, error) for error in ERRORS)
        else:
            yield call, ERRORS[number % len(ERRORS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault_kind", choices=["kill", "error"])
    parser.add_argument("operations", nargs="*", default=list(ALL), metavar="OPERATION")
    parser.add_argument("--at-most", type=int, default=1 << 30, help="faults of each operation")
    options = parser.parse_args()
    logging.disable()
    tallies = []
    for name in options.operations:
        tallies.append(enumerate_faults(options.fault_kind, name, options.at_most))
        print(tallies[-1], file=sys.stderr, flush=True)
    kinds: Counter[str] = Counter()
    for tally in tallies:
        kinds.update(tally.delivered)
    total = sum(kinds.values())
    print(json.dumps({"total": total, "kinds": dict(kinds), "tallies": [tally.to_json() for tally in tallies]}))
    return int(any(tally.findings for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
