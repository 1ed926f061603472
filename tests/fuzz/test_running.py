"""Child processes that die or hang, the verdicts on cases, and the output and exit status of the fuzzer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.fuzz import __main__ as fuzz
from tests.fuzz import trying
from tests.fuzz.children import Child
from tests.fuzz.generator import case_of
from tests.fuzz.modules import case_text, module_from_text
from tests.fuzz.pipeline import ModuleCase
from tests.fuzz.trying import Outcome, try_case
from trtbuild.core.partition.partitions import Partitions
from trtbuild.errors import InternalError, SourceError

#: The seed of a module that can be built. The inputs and outputs of its partitions are float32.
SEED = 47


def dies_or_hangs(seed: int) -> Outcome:
    """Replaces `try_seed`: dies for seed 1, and hangs for seed 2."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 2:
        time.sleep(3600)
    return Outcome(seed, "built")


def test_a_child_that_dies_is_a_finding() -> None:
    child = Child(dies_or_hangs)
    child.start_case(1)
    outcome = child.answer()
    assert (outcome.seed, outcome.verdict, outcome.group) == (1, "crashed", "the process died: SIGSEGV")
    assert any("in dies_or_hangs" in line for line in outcome.details)
    assert not child.alive
    child.close()


def test_a_child_that_does_not_answer_is_ended() -> None:
    child = Child(dies_or_hangs)
    child.start_case(2)
    assert not child.connection.poll(0.2) and child.is_overdue(0.1)
    outcome = child.stop(0.1)
    assert outcome.verdict == "crashed" and outcome.group.startswith("no answer")
    assert any("in dies_or_hangs" in line for line in outcome.details)
    assert not child.alive


def test_children_end_with_the_run() -> None:
    code = (
        "import os, sys, tests.fuzz.test_running as running\n"
        "children = [running.Child(running.dies_or_hangs) for _ in range(2)]\n"
        "print(*(child._process.pid for child in children), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    pids = [int(pid) for pid in process.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a child outlives the run"
        time.sleep(0.05)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_continues_after_a_child_died(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    monkeypatch.setattr(fuzz, "try_seed", dies_or_hangs)
    outcomes = {outcome.seed: outcome.verdict for outcome in fuzz.run([0, 1, 3, 2, 4, 5], jobs, limit_s=1)}
    assert outcomes == {0: "built", 1: "crashed", 2: "crashed", 3: "built", 4: "built", 5: "built"}


def test_the_summary_counts_outcomes_and_groups_reasons() -> None:
    refusals = [Outcome(k, "refused", "SourceError (export): no") for k in range(3)]
    text = fuzz.summary(
        [*refusals, Outcome(3, "built", unchecked=("p0: no kernel",)), Outcome(4, "different", "dtype")]
    )
    assert text.startswith("1 built, 3 refused, 0 skipped, 1 different, 0 crashed\n1 have partitions")
    assert re.search(r"refused +3  SourceError \(export\): no  \(seeds 0, 1, 2\)", text)


# -- verdicts


@pytest.mark.parametrize(
    ("error", "verdict", "group"),
    [
        (SourceError("dim 'b' is 7", code="constraint"), "refused", "SourceError (constraint): dim … is …"),
        (InternalError("lost a node"), "crashed", "InternalError"),
        (KeyError("sym3"), "crashed", "KeyError"),
    ],
)
def test_an_error_gives_a_verdict_and_a_group(
    monkeypatch: pytest.MonkeyPatch, error: Exception, verdict: str, group: str
) -> None:
    def fails(case: ModuleCase, *, engines: bool) -> None:
        raise error

    monkeypatch.setattr(trying, "build", fails)
    outcome = try_case(ModuleCase(module_from_text([], "x0 * 2", 1), [("float32", [(1, 2, 3)])]), 7)
    assert (outcome.seed, outcome.verdict, outcome.group) == (7, verdict, group)
    assert "return x0 * 2" in outcome.case and "x0: float32[1..2..3]" in outcome.case


def test_the_text_of_an_outcome_has_the_seed_the_verdict_and_the_case() -> None:
    case = ModuleCase(
        module_from_text([], "self.c0 + x0", 1, {"c0": torch.ones(2)}), [("int64", [2])], precision="float16"
    )
    outcome = try_case(case, 7)
    assert outcome.verdict == "built"
    text = fuzz.outcome_text(outcome)
    for line in ("seed 7: built", "x0: int64[2]", "precision=float16", "self.c0 = float32[2] [1.0, 1.0]"):
        assert line in text


@pytest.mark.parametrize("planted", [False, True])
def test_a_finding_sets_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], planted: bool
) -> None:
    """The whole command runs. The compiler finds the planted fault, a wrong dtype in the partition document."""
    read = Partitions.from_bytes
    if planted:
        monkeypatch.setattr(
            Partitions, "from_bytes", lambda data: read(re.sub(rb'"dtype":"\w+"', b'"dtype":"uint8"', data))
        )
    status = fuzz.main(["--only", str(SEED)])
    printed = capfd.readouterr().out
    assert status == int(planted)
    assert f"seed {SEED}: {'crashed InternalError' if planted else 'built'}" in printed
    assert ("uint8 in the partition" in printed) == planted


def test_a_seed_gives_the_same_case_in_every_process() -> None:
    code = f"import tests.fuzz.generator as g, tests.fuzz.modules as m; print(m.case_text(g.case_of({SEED})))"
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    case_of(SEED - 2)  # earlier cases have no effect
    assert case_text(case_of(SEED)) == process.stdout.strip() != ""
