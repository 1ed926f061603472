"""The commands plan, why, graph and status. They run no step, and import neither torch nor TensorRT."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from trtbuild.core.planning.graph import Step, Verdict
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import (
    Graph,
    ModelStatus,
    NextStep,
    Node,
    Plan,
    Status,
    StatusOutput,
    Why,
    WhyStep,
)
from trtbuild.driver.answers.nearest import nearest_records
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import UsageError


def read_only_workspace(request: Request) -> Workspace:
    """A workspace for commands that read the stores and write nothing to them."""
    workspace = Workspace(request)
    workspace.store.begin_read_only()
    return workspace


def plan(workspace: Workspace, start_s: float) -> tuple[Plan, dict[str, ModelPlan]]:
    """The plans of the requested models, as a document and by model. `start_s` is the start of the command
    (`time.monotonic`).

    If a step would have to run, but can run neither here nor on a worker, the document's `errors` contains the reason.
    """
    plans = workspace.plans()
    error = workspace.environment_error(plans)
    duration_s = time.monotonic() - start_s
    store = workspace.store
    errors = [error] if error else []
    return report.plan_document(plans, errors, duration_s, store.warnings(), store.reports()), plans


def why(request: Request, name: str) -> Why:
    """Why each step that `name` matches would run now, and why it last ran. Raises UsageError if no step matches.

    A step that this project has never built may have a nearest record: the most similar record in the local cache.
    """
    workspace = read_only_workspace(request)
    model = name if name in workspace.models else name.partition("/")[0]
    plans = {model: workspace.plan(model)} if model in workspace.models else {}
    steps = [step for plan in plans.values() for step in plan.steps.values() if name == model or _matches(step, name)]
    if not steps:
        step_ids = [step.id for plan in plans.values() for step in plan.steps.values()]
        candidates, kind = ([model, *step_ids], "steps") if step_ids else (list(workspace.models), "models")
        raise UsageError(f"no step or model is called {name!r}", hint=suggestion(name, candidates, kind))
    nearest = nearest_records(workspace.store.local, steps)
    return Why(
        steps=[
            WhyStep(
                id=step.id,
                key=step.key,
                verdict=step.verdict,
                reason=step.reason,
                last_run=workspace.history.last_run(step.id),
                nearest=nearest.get(step.id),
            )
            for step in steps
        ],
        warnings=workspace.store.warnings(),
    )


def _matches(step: Step, name: str) -> bool:
    """Whether `name` is the step's id or its beginning.

    ``vit/engine`` matches all engine steps of vit, ``vit/engine/x`` those of partition x for all targets.
    """
    return step.id == name or step.id.startswith((f"{name}/", f"{name}@"))


def graph(request: Request, deps: str | None = None, rdeps: str | None = None) -> Graph:
    """The steps in the plans of the requested models, as nodes and edges.

    `deps` and `rdeps` name steps or a model. `deps` keeps the named steps and all steps before them. `rdeps` keeps the
    named steps and all steps after them. With both, only steps that both keep are in the graph. Raises UsageError if no
    step matches.
    """
    plans = read_only_workspace(request).plans()
    steps = [step for plan in plans.values() for step in plan.steps.values()]
    edges = [(producer, step.id) for step in steps for producer in step.producers]
    kept = {step.id for step in steps}
    if deps is not None:
        kept &= _reachable(_ids_of_matching(steps, deps), [(consumer, producer) for producer, consumer in edges])
    if rdeps is not None:
        kept &= _reachable(_ids_of_matching(steps, rdeps), edges)
    return Graph(
        nodes=[
            Node(id=step.id, model=step.model, stage=step.stage, target=step.target, verdict=step.verdict)
            for step in steps
            if step.id in kept
        ],
        edges=[edge for edge in edges if edge[0] in kept and edge[1] in kept],
    )


def _ids_of_matching(steps: Sequence[Step], name: str) -> set[str]:
    found = {step.id for step in steps if step.model == name or _matches(step, name)}
    if not found:
        candidates = [*dict.fromkeys(step.model for step in steps), *(step.id for step in steps)]
        raise UsageError(f"no step or model is called {name!r}", hint=suggestion(name, candidates, "steps"))
    return found


def _reachable(first: set[str], edges: Sequence[tuple[str, str]]) -> set[str]:
    """The nodes `first`, and all nodes to which edges lead from them."""
    following: dict[str, list[str]] = defaultdict(list)
    for source, end in edges:
        following[source].append(end)
    reached, waiting = set(first), list(first)
    while waiting:
        new = [node for node in following[waiting.pop()] if node not in reached]
        reached.update(new)
        waiting += new
    return reached


def status(request: Request) -> Status:
    workspace = read_only_workspace(request)
    return Status(
        models=[_model_status(workspace, plan) for plan in workspace.plans().values()],
        warnings=workspace.store.warnings(),
    )


def _model_status(workspace: Workspace, plan: ModelPlan) -> ModelStatus:
    verdicts = [step.verdict for step in plan.steps.values()]
    package = plan.package
    all_hits = all(verdict == "hit" for verdict in verdicts)
    up_to_date = (
        all_hits
        and package is not None
        and package.record is not None
        and workspace.in_place(plan.model, package.record)
    )
    first_to_run = next((step for step in plan.steps.values() if step.verdict != "hit"), None)
    planned_verdicts: tuple[Verdict, ...] = ("hit", "run", "unknown")
    return ModelStatus(
        model=plan.model.name,
        up_to_date=up_to_date,
        steps={verdict: verdicts.count(verdict) for verdict in planned_verdicts},
        next=NextStep(id=first_to_run.id, reason=first_to_run.reason) if first_to_run else None,
        outputs=[StatusOutput(kind=kind, path=path) for kind, path in plan.model.outputs],
    )
