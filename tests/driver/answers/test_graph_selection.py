"""`trtbuild graph --deps` and `--rdeps` select the steps before and after a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trtbuild.core.planning.graph import ModelPlan, Reason, Stage, Step
from trtbuild.driver.answers import inquiries
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError

#: Step → the steps whose outputs it reads.
PRODUCERS = {
    "trace": (),
    "lower": ("trace",),
    "engine/p@a": ("lower", "trace"),
    "engine/p@b": ("lower",),
    "package": ("engine/p@a", "engine/p@b"),
}


@pytest.fixture(autouse=True)
def _two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with the models `m` and `n`, which both have the steps of `PRODUCERS`."""
    plans = {}
    for model in ("m", "n"):
        plan = ModelPlan(cast(Any, SimpleNamespace(name=model)), cast(Any, None))
        for name, producers in PRODUCERS.items():
            identifier, stage = f"{model}/{name}", cast(Stage, name.partition("/")[0])
            inputs = tuple(f"{model}/{producer}" for producer in producers)
            plan.steps[identifier] = Step(identifier, model, stage, "hit", Reason("recorded", ""), producers=inputs)
        plans[model] = plan
    monkeypatch.setattr(inquiries, "read_only_workspace", lambda _: SimpleNamespace(plans=lambda: plans))


def steps(**selection: str) -> list[str]:
    """The ids of the selected steps."""
    graph = inquiries.graph(cast(Request, None), **selection)
    names = [node.id for node in graph.nodes]
    assert all(source in names and end in names for source, end in graph.edges)
    return names


def test_the_steps_from_which_a_step_is_made() -> None:
    assert steps(deps="m/engine/p@a") == ["m/trace", "m/lower", "m/engine/p@a"]


def test_the_steps_that_are_made_from_a_step() -> None:
    assert steps(rdeps="m/engine/p") == ["m/engine/p@a", "m/engine/p@b", "m/package"]


def test_deps_and_rdeps_together_select_the_steps_between() -> None:
    assert steps(rdeps="m/lower", deps="m/engine/p@b") == ["m/lower", "m/engine/p@b"]


def test_a_model_stands_for_all_its_steps() -> None:
    assert steps(deps="n") == [f"n/{name}" for name in PRODUCERS]


def test_an_unknown_step_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="no step or model is called 'm/trac'") as caught:
        steps(deps="m/trac")
    assert "m/trace" in str(caught.value)
