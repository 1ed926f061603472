"""The package step of a plan.

A package contains the plans (bytes) of engines, but its recipe has only the engines' keys. Therefore the package's record
also has the digests of the plans. If an engine is built again and gets another plan, the package step runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtbuild.core.engines.binding import Interface
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.packages.contents import PackageContents, PackageEngine, ToolchainPartitions
from trtbuild.core.packages.package_recipe import package_recipe
from trtbuild.core.planning.graph import ModelPlan, Reason, Step
from trtbuild.core.planning.lookups import Facts, ToolchainFacts
from trtbuild.core.planning.verdicts import Verdicts
from trtbuild.core.recipes.recipe import Change
from trtbuild.core.recipes.record import Output, Record

#: (toolchain, facts about it) → the partition step and its partitions, which are None if the step has to run first.
PartitionSteps = dict[tuple[str, ToolchainFacts], tuple[Step, ToolchainPartitions | None]]
#: The interface of a traced program, and its weights by slot (the number of a weight).
InterfaceAndWeights = tuple[Interface, tuple[Weight, ...]]


def plan_package(
    plan: ModelPlan,
    verdicts: Verdicts,
    facts: Facts,
    lower: Record,
    interface_and_weights: InterfaceAndWeights,
    partition_steps: PartitionSteps,
    engines: Mapping[tuple[str, str], Step],
) -> None:
    """Add the package step to `plan`, after all other steps.

    `lower` is the lower step's record. `engines` maps (partition, target) to engine steps."""
    # The package step reads names of modules and nodes from the outputs of these steps.
    steps_with_names = [step.id for step in plan.steps.values() if step.stage in ("lower", "convert")]
    partition_step_ids = [step.id for step, _ in partition_steps.values()]
    producers = tuple(dict.fromkeys([*(step.id for step in engines.values()), *partition_step_ids, *steps_with_names]))
    partitions_by_target: dict[str, ToolchainPartitions] = {}
    for target in plan.model.targets:
        _, toolchain_partitions = partition_steps[target.toolchain, facts.toolchains[target]]
        if toolchain_partitions is not None:
            partitions_by_target[target.name] = toolchain_partitions
    if len(partitions_by_target) < len(plan.model.targets) or any(step.recipe is None for step in engines.values()):
        verdicts.add_unknown("package", producers=producers)
        return
    plan.contents = contents = _package_contents(
        plan, facts, lower, interface_and_weights, partitions_by_target, engines
    )
    step = verdicts.add_step("package", package_recipe(contents), None, producers=producers)
    unbuilt_engines = [engine.id for engine in engines.values() if engine.record is None]
    if step.record is not None and unbuilt_engines:
        verdicts.add_unknown(
            "package", producers=(*unbuilt_engines, *(name for name in producers if name not in unbuilt_engines))
        )
    elif step.record is not None:
        changed_plans = _changed_plans(step.record, contents)
        if changed_plans:
            plan.run_again(step, Reason("changed", "its engines were built again", changed_plans))


def _package_contents(
    plan: ModelPlan,
    facts: Facts,
    lower: Record,
    interface_and_weights: InterfaceAndWeights,
    partitions_by_target: Mapping[str, ToolchainPartitions],
    engines: Mapping[tuple[str, str], Step],
) -> PackageContents:
    interface, weights = interface_and_weights
    origins = dict(_origin(step) for step in plan.steps.values() if step.stage == "convert" and step.record is not None)
    other_origins: dict[str, dict[str, str]] = {}
    for (_, target), engine in engines.items():
        conversion = plan.steps[engine.producers[0]]
        if conversion.record is not None:
            graph, sha256 = _origin(conversion)
            if origins[graph] != sha256:
                other_origins.setdefault(target, {})[graph] = sha256
    return PackageContents(
        model=plan.model,
        shapes=plan.shapes,
        interface=interface,
        weights=weights,
        modules=lower.outputs["modules"],
        partitions_by_target=partitions_by_target,
        engines=_package_engines(engines),
        toolchains={target.name: facts.toolchains[target].version for target in plan.model.targets},
        origins=origins,
        other_origins=other_origins,
        plugin_library=plan.plugin_library,
        sms={target.name: facts.sms.get(target, (target.sm,)) for target in plan.model.targets},
    )


def _origin(conversion: Step) -> tuple[str, str]:
    """The graph of a convert step with a record, and the digest of the file with the origins of its nodes."""
    if conversion.recipe is None or conversion.record is None:
        raise AssertionError("a step with a record has a recipe")
    return str(dict(conversion.recipe.parts)["graph"]), conversion.record.outputs["origins"].sha256


def _package_engines(steps: Mapping[tuple[str, str], Step]) -> Sequence[PackageEngine]:
    return [
        PackageEngine(partition, target, step.key or "", *(_output(step, name) for name in ("plan", "layers")))
        for (partition, target), step in steps.items()
    ]


def _output(step: Step, name: str) -> Output | None:
    return step.record.outputs[name] if step.record is not None else None


def _changed_plans(package: Record, contents: PackageContents) -> tuple[Change, ...]:
    """A change for each engine whose plan has another digest than the plan in the package."""
    plans = contents.plans()
    recorded_plans = package.provenance.get("plans")
    old_plans: Mapping[str, object] = recorded_plans if isinstance(recorded_plans, Mapping) else {}
    return tuple(
        Change(f"plan:{name}", str(old_plans.get(name, "(absent)")), sha256)
        for name, sha256 in plans.items()
        if old_plans.get(name) != sha256
    )
