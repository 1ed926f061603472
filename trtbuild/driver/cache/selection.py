"""What a build of some models goes by: the records with which every step of it is a hit, on any machine.

Rules
1. It is found by planning: what a plan asks for and finds is what the same plan asks for somewhere else. Outputs that are
   in place do not count, as they are not elsewhere.
2. A trace is found with the versions of the torch side that are installed, or by a machine that has none: both ways are
   taken, so that both kinds of machines find it. So it is with a partition and the parsers that can be asked.
3. The table of a weights file is a record too, though no step leaves it; and so are a package's ``.pt2`` files.
4. A record is taken whole, with all that its step left: a store keeps no record that lacks some of it. So a step below
   can be run again from what was taken.
5. A package of some targets (``--target``) is another than that of all. One that only has to be put together, which takes
   no compiler and no time, is put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.engines.binding import names_of
from trtbuild.core.planning.graph import ModelPlan, Step, stages_until
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.driver.building.steps import pack
from trtbuild.driver.outputs import pt2
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, ManifestErrors, Problem


@dataclass(frozen=True)
class Selection:
    """Keys of records, sorted; the steps that some of them are the results of; and the steps that have no record.

    `packed` are those of packages that were put together just now (rule 5).
    """

    keys: tuple[str, ...]
    steps: Mapping[str, str]
    missing: tuple[Step, ...]
    packed: frozenset[str]

    def named(self, key: str) -> str:
        """What people call a record."""
        return self.steps.get(key, f"record {key}")


def select(workspace: Workspace) -> Selection:
    """All records by which the models that were asked for are built. Raises ManifestErrors."""
    plans: list[ModelPlan] = []
    packed = set[str]()
    problems: list[Problem] = []
    for name in workspace.models:
        try:
            plans.append(_packed(workspace, workspace.plan_elsewhere(name), packed))
        except ManifestErrors as error:
            problems += error.problems
    if problems:
        raise ManifestErrors(problems)
    found = set[str]()
    for plan in plans:
        _follow_the_other_way(workspace, plan)
        _ask_as_no_parser_is(workspace, plan)
        _ask_for_exported_files(workspace, plan)
        weights = plan.model.weights
        if weights is not None and weights in workspace.look.weights_digests:
            found.add(keys.weights_file(workspace.look.weights_digests[weights], "safetensors").key)
    steps = [step for plan in plans for step in plan.steps.values()]
    without = [step for step in steps if step.verdict != "hit"]
    found |= workspace.look.seen_records() - {step.key for step in without if step.key is not None}
    asked = stages_until(workspace.request.until)
    missing = [step for step in without if step.stage in asked]
    named = {step.key: step.id for step in reversed(steps) if step.key is not None}
    return Selection(tuple(sorted(found)), named, tuple(missing), frozenset(packed))


def _packed(workspace: Workspace, plan: ModelPlan, packed: set[str]) -> ModelPlan:
    """The plan, with its package put together if that is all that is to be done (rule 5)."""
    package, contents, store = plan.package, plan.contents, workspace.store
    to_do = [step for step in plan.steps.values() if step.verdict != "hit"]
    if package is None or contents is None or package.recipe is None or to_do != [package]:
        return plan
    if package.reason.code not in ("new", "changed", "evicted"):  # what is not trusted, or not what is locked, is said
        return plan
    try:
        record = pack(package.recipe, plan, store, workspace.look)
    except (BlobMissing, EntryCorrupt):
        return plan
    packed.add(record.recipe.key)
    workspace.look.ran(package.id, record)
    return workspace.plan_elsewhere(plan.model.name)


def _ask_as_no_parser_is(workspace: Workspace, plan: ModelPlan) -> None:
    """Look partitions up as a machine does that cannot cut the model itself, where another parser may be asked (rule 2)."""
    facts = workspace.facts[plan.model.name]
    differ = {target.toolchain for target, found in facts.toolchains.items() if found.parsers_differ}
    for step in plan.steps.values():
        if step.recipe is not None and isinstance(step.job, PartitionJob) and step.job.toolchain in differ:
            workspace.look.record(keys.any_partition(step.recipe).key)


def _ask_for_exported_files(workspace: Workspace, plan: ModelPlan) -> None:
    """Look ``.pt2`` files up as a machine with this torch does, and as one without (rule 3)."""
    package = plan.package
    if package is None or package.record is None or "pt2" not in dict(plan.model.outputs):
        return
    for versions in (workspace.facts[plan.model.name].versions, None):
        workspace.look.record(pt2.recipe(package.record, versions).key)


def _follow_the_other_way(workspace: Workspace, plan: ModelPlan) -> None:
    """Look a trace up as a machine does that has what this one lacks: torch, or no torch (rule 2)."""
    look, facts = workspace.look, workspace.facts[plan.model.name]
    trace = next((step for step in plan.steps.values() if step.stage == "trace"), None)
    if trace is None or trace.recipe is None:
        return
    names = names_of(look.weights_table(plan.model))
    if facts.versions is not None:
        declared = keys.trace_declared(plan.model, plan.shapes, names, facts.platform, None)
        recipe = keys.trace(declared, chain.follow(declared, look.read_link, look.observe))
        look.record(keys.any_trace(recipe).key)
        return
    made = dict(trace.recipe.parts)
    versions = made.get("versions")
    if not isinstance(versions, Mapping):
        return

    def observe(dependency: Dependency) -> str:
        seen = made.get(dependency.part) if dependency.kind == "distribution" else None
        return seen if isinstance(seen, str) else look.observe(dependency)

    declared = keys.trace_declared(
        plan.model, plan.shapes, names, facts.platform, {name: str(version) for name, version in versions.items()}
    )
    chain.follow(declared, look.read_link, observe)  # to the trace that was found the first way
