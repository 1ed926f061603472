"""``trtbuild inspect MODEL --precision``: the floating type in which each operator of a model computes.

The answer follows from the present manifest, not from a package. It needs only the trace of the model. So the command
also works if the next step, lower, has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trtbuild.core.model.precisions import ComputedOperator, Precision
from trtbuild.core.planning.jobs import LowerJob
from trtbuild.driver.project import blame, wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import TrtbuildError, UsageError


@dataclass(frozen=True, kw_only=True)
class InspectedPrecision:
    """The floating types in which a model computes, according to its present manifest.

    `default` is the precision of the model. `modules` maps patterns of module paths to the precision of these
    modules. `operators` are in the order of the graph.
    """

    schema: Literal["trtbuild.precision/1"] = "trtbuild.precision/1"
    model: str
    default: Precision
    modules: Mapping[str, Precision]
    operators: Sequence[ComputedOperator]


def inspect_precision(request: Request, name: str | None) -> InspectedPrecision:
    """Return the floating types in which the model `name` computes.

    Raises UsageError if `name` is not a model, or if the model was not traced yet or does not come from PyTorch. Raises
    SourceError for a pattern that matches no module, or contradicts another pattern.
    """
    if name is None:
        raise UsageError("--precision is for one model", hint="name it: trtbuild inspect MODEL --precision")
    workspace = Workspace(replace(request, models=(name,), force=False))
    try:
        with workspace.store.session():
            return _inspect(workspace, name)
    finally:
        workspace.store.close()


def _inspect(workspace: Workspace, name: str) -> InspectedPrecision:
    plan = workspace.plan_without_outputs(name)
    model = plan.model
    if not model.source.graph.is_lowered:
        raise UsageError(
            f"model {name!r} comes from `{model.source.kind}`: it computes in the types that it has",
            hint="only models that come from PyTorch have a precision",
        )
    lower = plan.steps[f"{name}/lower"]
    if not isinstance(lower.job, LowerJob):
        trace = plan.steps[f"{name}/trace"]
        raise UsageError(
            f"the types of model {name!r} are not known: {trace.id} has to run ({trace.reason.text})",
            hint=f"trtbuild build {name} --until trace",
        )
    workspace.store.fetch([lower.job.program])
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)
    try:
        computed = call(pool, "explain", lower.job).computed
    except TrtbuildError as error:
        blame.place_in_manifest(error, model, lower)
        raise
    finally:
        pool.close(kill=True)
    return InspectedPrecision(
        model=name,
        default=model.precision,
        modules={entry.pattern: entry.precision for entry in model.module_precisions},
        operators=computed,
    )
