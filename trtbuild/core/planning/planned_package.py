"""The package step of a plan.

Its recipe is known when all engines have keys. A package contains the bytes of engines, but its recipe has only their keys.
So the package's record also has the digests of the plans in it. If an engine was built again and its new plan has
another digest, the package step runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtbuild.core.engines.binding import Interface
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.packages.packaging import Contents, Cut, Engine
from trtbuild.core.planning.graph import ModelPlan, Reason, Step
from trtbuild.core.planning.lookups import Facts, ToolchainFacts
from trtbuild.core.planning.verdicts import Verdicts
from trtbuild.core.recipes.recipe import Change
from trtbuild.core.recipes.record import Output, Record

#: For each toolchain of the model's targets: the partition step and its result, which is None until it is known.
Cuts = dict[tuple[str, ToolchainFacts], tuple[Step, Cut | None]]
#: The interface of a traced program, and the weight of each slot.
Bound = tuple[Interface, tuple[Weight, ...]]


def plan_package(
    plan: ModelPlan,
    verdicts: Verdicts,
    facts: Facts,
    lower: Record,
    bound: Bound,
    cuts: Cuts,
    engines: Mapping[tuple[str, str], Step],
) -> None:
    """Add the package step to `plan`, after all other steps.

    `lower` is the record of the lowered program, `engines` are the engine steps by partition and target."""
    # The package step reads names from the outputs of these steps.
    with_names = [step.id for step in plan.steps.values() if step.stage in ("lower", "convert")]
    partition_steps = [step.id for step, _ in cuts.values()]
    after = tuple(dict.fromkeys([*(step.id for step in engines.values()), *partition_steps, *with_names]))
    by_target: dict[str, Cut] = {}
    for target in plan.model.targets:
        _, cut = cuts[target.toolchain, facts.toolchains[target]]
        if cut is not None:
            by_target[target.name] = cut
    if len(by_target) < len(plan.model.targets) or any(step.recipe is None for step in engines.values()):
        verdicts.unknown("package", after=after)
        return
    plan.contents = contents = _contents(plan, facts, lower, bound, by_target, engines)
    step = verdicts.look_up("package", contents.recipe(), None, after=after)
    waiting = [engine.id for engine in engines.values() if engine.record is None]
    if step.record is not None and waiting:
        verdicts.unknown("package", after=(*waiting, *(name for name in after if name not in waiting)))
    elif step.record is not None:
        rebuilt = _rebuilt(step.record, contents)
        if rebuilt:
            plan.run_again(step, Reason("changed", "its engines were built again", rebuilt))


def _contents(
    plan: ModelPlan,
    facts: Facts,
    lower: Record,
    bound: Bound,
    cuts: Mapping[str, Cut],
    engines: Mapping[tuple[str, str], Step],
) -> Contents:
    interface, weights = bound
    origins = {}
    for step in plan.steps.values():
        if step.stage == "convert" and step.record is not None and step.recipe is not None:
            origins[str(dict(step.recipe.parts)["graph"])] = step.record.outputs["origins"].sha256
    return Contents(
        model=plan.model,
        shapes=plan.shapes,
        interface=interface,
        weights=weights,
        modules=lower.outputs["modules"],
        cuts=cuts,
        engines=_engines(engines),
        toolchains={target.name: facts.toolchains[target].version for target in plan.model.targets},
        origins=origins,
        sms={target.name: facts.sms.get(target, (target.sm,)) for target in plan.model.targets},
    )


def _engines(steps: Mapping[tuple[str, str], Step]) -> Sequence[Engine]:
    return [
        Engine(part, target, step.key or "", *(_output(step, name) for name in ("plan", "layers")))
        for (part, target), step in steps.items()
    ]


def _output(step: Step, name: str) -> Output | None:
    return step.record.outputs[name] if step.record is not None else None


def _rebuilt(package: Record, contents: Contents) -> tuple[Change, ...]:
    """The engines whose plans have other digests than the plans in the package."""
    plans = {
        f"{engine.partition}@{engine.target}": engine.plan.sha256
        for engine in contents.engines
        if engine.plan is not None
    }
    packed = package.provenance.get("plans")
    was: Mapping[str, object] = packed if isinstance(packed, Mapping) else {}
    return tuple(
        Change(f"plan:{name}", str(was.get(name, "(absent)")), sha256)
        for name, sha256 in plans.items()
        if was.get(name) != sha256
    )
