"""The mode that tries every operator with its samples: which calls and forms it tries, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fuzz import samples
from tests.fuzz.modules import case_text
from tests.fuzz.operators import operators
from tests.fuzz.pipeline import ModuleCase
from tests.fuzz.trying import Outcome


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes a toy function the only operator. Each of `arguments` is one sample of it."""

    def make(function: Callable[..., Any], *arguments: Sequence[Any]) -> None:
        inputs = [SimpleNamespace(input=first, args=tuple(others), kwargs={}) for first, *others in arguments]
        op = SimpleNamespace(
            name="toy",
            op=function,
            supported_dtypes=lambda device: {torch.float32},
            sample_inputs=lambda *arguments, **settings: iter(inputs),
        )
        monkeypatch.setattr(samples, "operators", lambda: (op,))

    return make


def tried(refused: Sequence[str] = (), different: Sequence[str] = ()) -> tuple[list[str], Outcome]:
    """The texts of the tried cases, and the outcome. A case with one of the given texts is refused, or different."""
    texts: list[str] = []

    def try_one(case: ModuleCase) -> Outcome:
        texts.append(case_text(case))
        for verdict, parts in (("refused", refused), ("different", different)):
            if any(part in texts[-1] for part in parts):
                return Outcome(-1, verdict, verdict, (verdict,), texts[-1])  # type: ignore[arg-type]
        return Outcome(-1, "built")

    return texts, samples.try_samples(0, "float32", try_one)


def test_all_calls_of_an_operator_are_built_and_compared() -> None:
    number = next(number for number, op in enumerate(operators()) if op.name == "logit")
    outcome = samples.try_samples(number, "float32")
    assert (outcome.seed, outcome.verdict, outcome.case) == (number, "built", "logit")


def test_calls_with_the_same_arguments_are_tried_once(toy: Callable[..., None]) -> None:
    toy(lambda x, n: x * n, [torch.ones(3), 2], [torch.ones(4), 2], [torch.ones(3), 3], [torch.ones(0), 4])
    (text,), outcome = tried()
    assert outcome.verdict == "built"
    assert "op_toy(x0, 2)" in text and "op_toy(x1, 3)" in text and "x2" not in text
    assert text.startswith("x0: float32[1..3..8]\n")


def test_a_finding_is_reported_with_its_call_alone(toy: Callable[..., None]) -> None:
    toy(lambda x, n: x * n, [torch.ones(3), 2], [torch.ones(3), 3])
    texts, outcome = tried(different=["x0, 3)", "x1, 3)"])
    assert len(texts) == 3
    assert (outcome.verdict, outcome.group) == ("different", "toy: different")
    assert "op_toy(x0, 3)" in outcome.case and "op_toy(x0, 2)" not in outcome.case


def test_a_refused_call_is_tried_in_simpler_forms(toy: Callable[..., None]) -> None:
    toy(lambda x: x + 1, [torch.ones(3, 4)])
    texts, outcome = tried(refused=[".."])
    assert outcome.verdict == "built" and "x0: float32[3, 4]" in texts[-1]
    assert len(set(texts)) == len(samples.FORMS) - 2


def test_a_call_that_runs_at_one_size_only_is_static(toy: Callable[..., None]) -> None:
    toy(lambda x: x + torch.ones(3, 4), [torch.ones(3, 4)])
    (text,), _ = tried()
    assert text.startswith("x0: float32[3, 4]\n")
