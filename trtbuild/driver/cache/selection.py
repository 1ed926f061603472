"""Select the records that make every step of the requested models a hit, on any machine.

Rules
1. Every record that a plan looks up is selected, because another machine looks up the same records. The plan ignores
   the outputs in the project's directory, because another machine does not have them.
2. Some results are found by two keys, and the selection looks up both:
   * A machine with torch looks up a trace (and a calibration) by files and installed versions. A machine without torch
     looks it up by files only.
   * A machine with a parser looks up partitions by the version of its parser. A machine without a parser looks up
     another record, whose key names no parser, and which leads to the partitions.
3. Two kinds of records are selected although no step makes them: the table of the tensors of a weights file, and the
   ``.pt2`` files of a package.
4. A record is selected with all of its outputs, because a store accepts only complete records. So another machine can
   also run later steps again.
5. The package for some targets (``--target``) differs from the package for all targets. If it is the only missing
   record, the selection builds it, because that takes little time and needs no compiler.
6. With ``--until``, the records of later steps are not selected.
7. A machine without torch finds a trace by a pointer, which leads to the last trace of the same files. If another version
   of torch has made that trace, the selection makes the pointer lead to the selected trace, because the other trace is not
   selected. A machine whose signatures other machines do not trust leaves the pointer as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from trtbuild.core.planning.acceptance import Accepted, made_from_same_files
from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, Step, stages_until
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.lookup_recipes import partition_with_any_parser
from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX, Trust
from trtbuild.core.values.encoding import Value
from trtbuild.driver.building.steps.package_record import publish_package
from trtbuild.driver.building.steps.pointers import publish_for_any_versions
from trtbuild.driver.outputs import pt2
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, ManifestErrors, Problem, StoreUnavailable


@dataclass(frozen=True)
class Selection:
    """The selected records: `keys` are their keys, in ascending order.

    `step_ids`: record key → id of the step. `missing`: the steps without a record. `built_packages`: the keys of the
    packages that the selection has built (rule 5).
    """

    keys: tuple[str, ...]
    step_ids: Mapping[str, str]
    missing: tuple[Step, ...]
    built_packages: frozenset[str]

    def record_name(self, key: str) -> str:
        """The name of a record in messages: the id of its step, or "record KEY" if no step has made it."""
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
            selected.add(keys.weights_file(workspace.lookups.files.weights_digests[weights]).key)
    steps = [step for plan in plans for step in plan.steps.values()]
    left_out = [step for step in steps if step.verdict != "hit" or step.stage not in stages]
    selected |= workspace.lookups.found_record_keys() - {step.key for step in left_out if step.key is not None}
    missing = [step for step in left_out if step.stage in stages]
    step_ids = {step.key: step.id for step in reversed(steps) if step.key is not None}
    return Selection(tuple(sorted(selected)), step_ids, tuple(missing), frozenset(built_packages))


def _plan_with_package(workspace: Workspace, plan: ModelPlan, built_packages: set[str]) -> ModelPlan:
    """Build the package of a plan if only the package is missing (rule 5).

    Return a new plan with this package, or the given plan if the package was not built.
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
    """Look up partitions as a machine without a parser does (rule 2), for toolchains whose parsers may differ."""
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

    One kind has torch, the other kind does not. Nothing is returned, because `lookups` remembers each record that it
    finds, and each link (a record that leads to another, see `core.recipes.chain`).
    """
    lookups, facts = workspace.lookups, workspace.facts[plan.model.name]
    for step in plan.steps.values():
        if step.stage not in USER_CODE_STAGES or step.recipe is None:
            continue
        declared, parts = Declared.of(step.recipe), dict(step.recipe.parts)
        if facts.versions is not None:
            accepted = _accepted_without_torch(lookups, declared.without_versions())
            leads_to_step = accepted is not None and accepted.recipe.same_as(step.recipe)
            if step.record is not None and not leads_to_step and _signs_for_others(workspace.store.local.trust):
                # Another version of torch has made the last trace of the same files (rule 7).
                observations = plan.user_code[step.stage].observations
                with suppress(StoreUnavailable):
                    publish_for_any_versions(declared, observations, step.record, lookups, workspace.store)
                    _accepted_without_torch(lookups, declared.without_versions())
        elif isinstance(parts.get("versions"), Mapping):
            # The step is already selected. The call finds the links that a machine with torch follows.
            chain.follow(declared, lookups.read_link, partial(_observe_as, parts, lookups))


def _accepted_without_torch(lookups: StoreLookups, unversioned: Declared) -> Accepted | None:
    """The trace or the calibration that a machine without torch uses. `unversioned` has no versions."""
    return made_from_same_files(
        lookups, unversioned, chain.follow(unversioned, lookups.read_link, lookups.observe), None
    )


def _signs_for_others(trust: Trust) -> bool:
    """Whether other machines may use the records that this machine makes."""
    domain = trust.own_domain
    return not trust.checks_signatures or (domain is not None and not domain.startswith(LOCAL_DOMAIN_PREFIX))


def _observe_as(parts: Mapping[str, Value], lookups: StoreLookups, dependency: Dependency) -> str:
    """The state of `dependency` on a machine with the Python distributions that a recipe's `parts` list."""
    seen = parts.get(dependency.part) if dependency.kind in ("distribution", "import") else None
    return seen if isinstance(seen, str) else lookups.observe(dependency)
