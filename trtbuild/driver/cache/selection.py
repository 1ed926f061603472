"""Select the records that make every step of the requested models a hit, on any machine.

Rules
1. A plan is made, and every record that it looks up is selected. A plan on another machine looks up the same records. The
   project's outputs are ignored, because another machine does not have them.
2. A machine with torch looks up a trace (and a calibration) by files and installed versions. A machine without torch
   looks it up by files only. The selection makes both lookups, so that both kinds of machines find the trace. Partitions
   are also looked up in two ways: a machine with a parser looks them up by the version of its parser. A machine without
   a parser looks up a record that leads to the partitions. The key of this record names no parser.
3. The table of the tensors of a weights file and the ``.pt2`` files of a package are also records, although no step makes
   them.
4. A record is selected with all of its outputs, because a store accepts only complete records. So another machine can run
   later steps again.
5. The package for some targets (``--target``) differs from the package for all targets. If only the package for the
   requested targets is missing, the selection builds it, because that takes little time and needs no compiler.
6. With ``--until``, the records of later steps are not selected, even if the cache has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, Step, stages_until
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.lookup_recipes import partition_with_any_parser, with_any_versions
from trtbuild.core.values.encoding import Value
from trtbuild.driver.building.steps.package_record import publish_package
from trtbuild.driver.outputs import pt2
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, ManifestErrors, Problem


@dataclass(frozen=True)
class Selection:
    """The selected records: `keys` are their keys, in ascending order.

    `step_ids` maps the key of a record to the id of its step. `missing` has the steps without a record. `built_packages`
    has the keys of the packages that the selection has built (rule 5).
    """

    keys: tuple[str, ...]
    step_ids: Mapping[str, str]
    missing: tuple[Step, ...]
    built_packages: frozenset[str]

    def record_name(self, key: str) -> str:
        """The name that messages use for the record with this key: the id of its step, if a step has made the record."""
        return self.step_ids.get(key, f"record {key}")


def select(workspace: Workspace) -> Selection:
    """Select all records that a build of the requested models needs. Raises ManifestErrors."""
    stages = stages_until(workspace.request.until)
    plans: list[ModelPlan] = []
    built_packages = set[str]()
    problems: list[Problem] = []
    for name in workspace.models:
        try:
            plan = workspace.plan_without_outputs(name)
            plans.append(_plan_with_package(workspace, plan, built_packages) if "package" in stages else plan)
        except ManifestErrors as error:
            problems += error.problems
    if problems:
        raise ManifestErrors(problems)
    selected = set[str]()
    for plan in plans:
        _look_up_user_code_as_other_machine(workspace, plan)
        _look_up_partitions_without_parser(workspace, plan)
        if workspace.request.until is None:
            _look_up_exported_files(workspace, plan)
        weights = plan.model.weights
        if weights is not None and weights in workspace.lookups.files.weights_digests:
            selected.add(keys.weights_file(workspace.lookups.files.weights_digests[weights], "safetensors").key)
    steps = [step for plan in plans for step in plan.steps.values()]
    left_out = [step for step in steps if step.verdict != "hit" or step.stage not in stages]
    selected |= workspace.lookups.found_record_keys() - {step.key for step in left_out if step.key is not None}
    missing = [step for step in left_out if step.stage in stages]
    step_ids = {step.key: step.id for step in reversed(steps) if step.key is not None}
    return Selection(tuple(sorted(selected)), step_ids, tuple(missing), frozenset(built_packages))


def _plan_with_package(workspace: Workspace, plan: ModelPlan, built_packages: set[str]) -> ModelPlan:
    """Build the package of a plan if no other step is missing (rule 5). Return a new plan with this package.

    If the package is not built, return the given plan.
    """
    package, contents, store = plan.package, plan.contents, workspace.store
    missing = [step for step in plan.steps.values() if step.verdict != "hit"]
    if package is None or contents is None or package.recipe is None or missing != [package]:
        return plan
    if package.reason.code not in ("new", "changed", "evicted"):  # an untrusted or refused record is reported instead
        return plan
    try:
        record = publish_package(package.recipe, plan, store, workspace.lookups)
    except (BlobMissing, EntryCorrupt):
        return plan
    built_packages.add(record.recipe.key)
    workspace.lookups.note_run(package.id, record)
    return workspace.plan_without_outputs(plan.model.name)


def _look_up_partitions_without_parser(workspace: Workspace, plan: ModelPlan) -> None:
    """Look up partitions as a machine without a parser does, if machines use different parsers (rule 2)."""
    facts = workspace.facts[plan.model.name]
    toolchains = {target.toolchain for target, toolchain in facts.toolchains.items() if toolchain.parsers_differ}
    for step in plan.steps.values():
        if step.recipe is not None and isinstance(step.job, PartitionJob) and step.job.toolchain in toolchains:
            workspace.lookups.record(partition_with_any_parser(step.recipe).key)


def _look_up_exported_files(workspace: Workspace, plan: ModelPlan) -> None:
    """Look up ``.pt2`` files for this machine's version of torch, and as a machine without torch does (rule 3)."""
    package = plan.package
    if package is None or package.record is None or "pt2" not in dict(plan.model.outputs):
        return
    for versions in (workspace.facts[plan.model.name].versions, None):
        workspace.lookups.record(pt2.recipe(package.record, versions).key)


def _look_up_user_code_as_other_machine(workspace: Workspace, plan: ModelPlan) -> None:
    """Look up calibration and trace as the other kind of machine does (rule 2).

    If this machine has torch, the other kind is a machine without torch. Otherwise it is a machine with torch. The lookups
    themselves are the effect: `lookups` remembers each record and each link (`core.recipes.chain`) that it finds.
    """
    lookups, facts = workspace.lookups, workspace.facts[plan.model.name]
    for step in plan.steps.values():
        if step.stage not in USER_CODE_STAGES or step.recipe is None:
            continue
        declared, parts = Declared.of(step.recipe), dict(step.recipe.parts)
        if facts.versions is not None:
            unversioned = declared.without_versions()
            recipe = keys.user_code(unversioned, chain.follow(unversioned, lookups.read_link, lookups.observe))
            lookups.record(with_any_versions(recipe).key)
        elif isinstance(parts.get("versions"), Mapping):
            # The result is not needed: the step is already selected. The call selects the links that a machine with torch
            # follows.
            chain.follow(declared, lookups.read_link, partial(_observe_as, parts, lookups))


def _observe_as(parts: Mapping[str, Value], lookups: StoreLookups, dependency: Dependency) -> str:
    """The state that `dependency` has on a machine with the distributions in `parts`, the parts of a recipe."""
    seen = parts.get(dependency.part) if dependency.kind in ("distribution", "import") else None
    return seen if isinstance(seen, str) else lookups.observe(dependency)
