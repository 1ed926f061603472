"""Commands that only ask: plan, why, graph, status. They run no step and import neither torch nor TensorRT."""

from __future__ import annotations

import time
from typing import Any

from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.answers import report
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import UsageError

Document = dict[str, Any]


def _asked(request: Request) -> Workspace:
    workspace = Workspace(request)
    workspace.store.only_asks()
    return workspace


def plan(request: Request) -> Document:
    """``trtbuild.plan/1``. What this machine could not build is in `errors`; the plan is there all the same."""
    started = time.monotonic()
    workspace = _asked(request)
    plans = workspace.plans()
    error = workspace.environment_error(plans)
    document = report.plan_document(plans, [error] if error else [], time.monotonic() - started)
    return {**document, "warnings": workspace.store.warnings(), "remotes": workspace.store.reports()}


def why(request: Request, name: str) -> Document:
    """``trtbuild.why/1``: the reason of each step that is meant, now, and that of its last run."""
    workspace = _asked(request)
    model = name if name in workspace.models else name.partition("/")[0]
    plans = {model: workspace.plan(model)} if model in workspace.models else {}
    steps = [step for plan in plans.values() for step in plan.steps.values() if name == model or _is_meant(step, name)]
    if not steps:
        steps_of_it = [step.id for plan in plans.values() for step in plan.steps.values()]
        known, what = ([model, *steps_of_it], "steps") if steps_of_it else (list(workspace.models), "models")
        raise UsageError(f"no step or model is called {name!r}", hint=suggestion(name, known, what))
    return {
        "schema": "trtbuild.why/1",
        "steps": [
            {
                "id": step.id,
                "key": step.key,
                "verdict": step.verdict,
                "reason": step.reason.to_json(),
                "last_run": workspace.history.last_run(step.id),
            }
            for step in steps
        ],
        "warnings": workspace.store.warnings(),
    }


def _is_meant(step: Step, name: str) -> bool:
    """``vit/engine`` means all engine steps of vit; ``vit/engine/encoder.layers.3`` those for all targets."""
    return step.id == name or step.id.startswith((f"{name}/", f"{name}@"))


def graph(request: Request) -> Document:
    """``trtbuild.graph/1``: nodes and edges, as far as they are known."""
    plans = _asked(request).plans()
    nodes = [
        {"id": step.id, "model": step.model, "stage": step.stage, "target": step.target, "verdict": step.verdict}
        for plan in plans.values()
        for step in plan.steps.values()
    ]
    edges = [[before, step.id] for plan in plans.values() for step in plan.steps.values() for before in step.after]
    return {"schema": "trtbuild.graph/1", "nodes": nodes, "edges": edges}


def status(request: Request) -> Document:
    """``trtbuild.status/1``: per model, what would run, and whether its outputs are in place."""
    workspace = _asked(request)
    return {
        "schema": "trtbuild.status/1",
        "models": [_model_status(workspace, plan) for plan in workspace.plans().values()],
        "warnings": workspace.store.warnings(),
    }


def _model_status(workspace: Workspace, plan: ModelPlan) -> Document:
    verdicts = [step.verdict for step in plan.steps.values()]
    package = plan.package
    hit = all(verdict == "hit" for verdict in verdicts)
    in_place = (
        hit and package is not None and package.record is not None and workspace.in_place(plan.model, package.record)
    )
    first = next((step for step in plan.steps.values() if step.verdict != "hit"), None)
    return {
        "model": plan.model.name,
        "up_to_date": in_place,
        "steps": {verdict: verdicts.count(verdict) for verdict in ("hit", "run", "unknown")},
        "next": {"id": first.id, "reason": first.reason.to_json()} if first else None,
        "outputs": [{"kind": kind, "path": path} for kind, path in plan.model.outputs],
    }
