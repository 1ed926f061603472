"""The part of a plan that runs user code: the calibrate step of a model with ``quantize:``, and the trace step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from trtbuild.core.engines.binding import weight_types
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.planning import acceptance
from trtbuild.core.planning.graph import ModelPlan, Reason, Step, UserCode, step_id
from trtbuild.core.planning.jobs import PlannedCalibration, PlannedTrace
from trtbuild.core.planning.lookups import Facts, Lookups
from trtbuild.core.planning.verdicts import RECORDED, Verdicts
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared, UserCodeStage, calibrate_declared, trace_declared
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.recipe import Recipe

#: The versions of torch and related packages, by name.
Versions = Mapping[str, str]


class UserCodePlanner:
    """Adds the steps that run user code to a plan.

    The dependencies of such a step are looked up through a chain of links (`trtbuild.core.recipes.chain`)."""

    def __init__(self, plan: ModelPlan, verdicts: Verdicts, facts: Facts, lookups: Lookups) -> None:
        self._plan = plan
        self._verdicts = verdicts
        self._facts = facts
        self._lookups = lookups

    def calibrate(self) -> Step:
        """Add the calibrate step."""
        declared_for = partial(calibrate_declared, self._plan.model, self._facts.platform)
        recipe, hit_reason, _ = self._look_up("calibrate", declared_for)
        return self._verdicts.add_step("calibrate", recipe, PlannedCalibration(), hit_reason=hit_reason)

    def trace(self, table: Mapping[str, Weight] | None, calibration: Step | None) -> tuple[Step, Versions]:
        """Add the trace step, and return it with the versions for the recipes of later steps.

        `table` maps names to the weights of the weights file. `calibration` is a step with a record, or None."""
        types = weight_types(table)
        record = None if calibration is None else calibration.record
        quantizers = None if record is None else record.outputs["quantizers"].sha256

        def declared_for(versions: Versions | None) -> Declared:
            plan, platform = self._plan, self._facts.platform
            return trace_declared(plan.model, plan.declared_shapes, types, platform, versions, quantizers)

        recipe, hit_reason, versions = self._look_up("trace", declared_for)
        weights = None if types is None else tuple((name, dtype, tuple(shape)) for name, dtype, shape in types)
        producers = () if calibration is None else (calibration.id,)
        job = PlannedTrace(weights, quantizers)
        return self._verdicts.add_step("trace", recipe, job, producers=producers, hit_reason=hit_reason), versions

    def _look_up(
        self, stage: UserCodeStage, declared_for: Callable[[Versions | None], Declared]
    ) -> tuple[Recipe, Reason, Versions]:
        """The recipe of a step, the reason for a hit, and the versions for the recipes of later steps.

        `declared_for` returns the declared parts of the recipe (known before the code runs) for given versions."""
        facts, lookups = self._facts, self._lookups
        declared, can_run = declared_for(facts.versions), facts.versions is not None
        announced = lookups.announced_recipe(step_id(self._plan.model.name, stage))
        if announced is not None:  # the step is running now, and has no links and no record yet
            self._plan.user_code[stage] = UserCode(declared, ())
            return announced, RECORDED, facts.versions or {}
        observations: tuple[Observation, ...] = ()
        accepted = None if can_run else acceptance.named_by_lock(lookups, declared, facts.locked_steps)
        if accepted is None:
            observations = chain.follow(
                declared, lookups.read_link, lookups.observe, lookups.later_dependencies, lookups.prefetch
            )
            if not can_run:
                accepted = acceptance.made_from_same_files(lookups, declared, observations, facts.locked_steps)
        if accepted is not None:
            self._plan.user_code[declared.stage] = UserCode(declared, accepted.observations)
            return accepted.recipe, accepted.reason, accepted.versions
        self._plan.user_code[declared.stage] = UserCode(declared, observations)
        wanted = declared_for(facts.locked_steps.versions) if not can_run and facts.locked_steps else declared
        return keys.user_code(wanted, observations), RECORDED, facts.versions or {}
