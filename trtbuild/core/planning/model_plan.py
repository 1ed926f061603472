"""The plan of one model: which steps have to run, and why. It follows from records and facts alone.

Rules
1. Steps are planned in the order of the graph. As long as each step has a record, the next step's recipe is known. If a
   step has no usable record, the steps that need its results are ``unknown``. When the step has run, the model is planned
   again. The later steps are then hits if the step gave the same results as before.
2. The code that makes a verdict also writes its reason. Most of this code is in `core.planning.verdicts`.
   `core.planning.demand` runs last, from the outputs back to the first steps.
3. Planning needs neither torch nor TensorRT, because the facts have their versions. A machine that cannot trace the model
   (`Facts.versions` is None) accepts another machine's trace of the same files, and uses the versions in the trace's record
   (`core.planning.acceptance`).
4. If an engine was built again and has other bytes, the package step runs again (`core.planning.planned_package`).
5. Documents (JSON outputs of steps) may be intact and trusted, and still contradict each other. For example, a partition
   may read a weight that the trace does not have. Then the trace runs again. If that does not help, the partition steps
   run again, one after the other. A step that this command has already run does not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property

from trtbuild.core.engines.binding import Interface, bind_weights, weights_from_json
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.plugins import Plugin
from trtbuild.core.model.shapes import ShapePlan, profile_sizes
from trtbuild.core.model.spec import Model, ToolchainName
from trtbuild.core.packages.contents import ToolchainPartitions
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.planning import acceptance
from trtbuild.core.planning.comparison import make_comparison
from trtbuild.core.planning.demand import require_blobs
from trtbuild.core.planning.expand import symbol_values
from trtbuild.core.planning.graph import ModelPlan, Reason, Step, step_id
from trtbuild.core.planning.jobs import LowerJob, PartitionJob
from trtbuild.core.planning.lookups import Facts, Lookups, ToolchainFacts
from trtbuild.core.planning.planned_engines import EnginePlanner, suffix_of
from trtbuild.core.planning.planned_package import InterfaceAndWeights, PartitionSteps, plan_package
from trtbuild.core.planning.planned_user_code import UserCodePlanner
from trtbuild.core.planning.verdicts import RECORDED, Verdicts
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.lookup_recipes import stand_in_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record

__all__ = ["Facts", "Lookups", "ModelPlan", "ToolchainFacts", "plan_model"]


def plan_model(
    model: Model, shapes: ShapePlan, facts: Facts, lookups: Lookups, is_in_place: Callable[[Model, Record], bool]
) -> ModelPlan:
    """The plan for one model. `is_in_place` returns whether all files of a package are already at their paths."""
    forward = _ForwardPass(model, shapes, facts, lookups)
    forward.plan_all()
    require_blobs(forward.plan, lookups, is_in_place)
    return forward.plan


class _ForwardPass:
    """The forward pass: recipes, records and verdicts, in the order of the graph."""

    def __init__(self, model: Model, shapes: ShapePlan, facts: Facts, lookups: Lookups) -> None:
        self.plan = ModelPlan(model, shapes)
        self._model = model
        self._facts = facts
        self._versions: Mapping[str, str] = facts.versions or {}
        self._lookups = lookups
        self._verdicts = Verdicts(self.plan, lookups)

    def plan_all(self) -> None:
        table = self._lookups.weights_table(self._model)
        self.plan.project_blobs = frozenset(weight.sha256 for weight in (table or {}).values())
        library = self.plan.plugin_library = self._plugin_library()
        if library is not None:
            self.plan.project_blobs |= {library.sha256}
        user_code = UserCodePlanner(self.plan, self._verdicts, self._facts, self._lookups)
        calibration = user_code.calibrate() if self._model.quantization is not None else None
        if calibration is not None and calibration.record is None:
            trace = self._verdicts.add_unknown("trace", producers=(calibration.id,))
            self._verdicts.add_unknown("lower", producers=(trace.id,))
            self._add_unknown_after_lower()
            return
        trace, self._versions = user_code.trace(table, calibration)
        interface_and_weights = self._bind(trace, table)
        if trace.record is None or interface_and_weights is None:
            self._verdicts.add_unknown("lower", producers=(trace.id,))
            self._add_unknown_after_lower()
            return
        lower = self._lower(trace, trace.record, interface_and_weights)
        if lower.record is None:
            self._add_unknown_after_lower()
            return
        try:
            self._after_lower(lower.record, interface_and_weights)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            if not self._rerun_producer(trace):
                raise

    def _after_lower(self, lower: Record, interface_and_weights: InterfaceAndWeights) -> None:
        """Add all steps after lower. May raise any error if documents contradict each other (rule 5)."""
        planner = EnginePlanner(
            self.plan, self._verdicts, self._lookups, interface_and_weights, self._versions, self._facts.environment
        )
        partition_steps: PartitionSteps = {}
        engines: dict[tuple[str, str], Step] = {}
        for target in self._model.targets:
            facts = self._facts.toolchains[target]
            toolchain = (target.toolchain, facts)
            if toolchain not in partition_steps:
                is_first = not partition_steps
                partition_steps[toolchain] = self._partition(lower, target.toolchain, facts, is_first=is_first)
            step, toolchain_partitions = partition_steps[toolchain]
            if toolchain_partitions is None:
                self._verdicts.add_unknown("convert", suffix=suffix_of(step), producers=(step.id,))
                self._verdicts.add_unknown("engine", target=target.name, producers=(step.id,))
                continue
            engines |= planner.add_engines(step, toolchain_partitions.partitions, target, facts)
        plan_package(self.plan, self._verdicts, self._facts, lower, interface_and_weights, partition_steps, engines)

    def _rerun_producer(self, trace: Step) -> bool:
        """Change the first step that may have written wrong documents into a run (rule 5).

        Returns False if this command has already run all such steps."""
        reason = Reason("corrupt", "its output does not match the outputs of later steps")
        partition_steps = [
            step for step in self.plan.steps.values() if step.stage == "partition" and step.verdict == "hit"
        ]
        lower = self.plan.steps[step_id(self._model.name, "lower")]
        calibration = {name: step for name, step in self.plan.steps.items() if step.stage == "calibrate"}
        self.plan.contents = None
        if trace.verdict == "hit" and not self._lookups.was_run(trace.id):
            self.plan.steps = {**calibration, trace.id: trace}
            self._verdicts.cannot_use(trace, reason)
            self._verdicts.add_unknown("lower", producers=(trace.id,))
            self._add_unknown_after_lower()
            return True
        for step in partition_steps:
            if not self._lookups.was_run(step.id):
                self.plan.steps = {**calibration, trace.id: trace, lower.id: lower, step.id: step}
                self._verdicts.cannot_use(step, reason)
                self._add_unknown_after_partition(step.id)
                return True
        return False

    # -- the stages

    def _bind(self, trace: Step, table: Mapping[str, Weight] | None) -> InterfaceAndWeights | None:
        """The traced program's interface, and its weights. None if a document cannot be used."""
        interface = self._verdicts.read_output(trace, "interface", self._interface)
        if interface is None:
            return None
        weights = self._verdicts.read_output(
            trace, "weights", lambda data: bind_weights(interface, weights_from_json(json.loads(data)), table)
        )
        if weights is None:
            return None
        self.plan.ties = interface.ties
        return interface, weights

    def _interface(self, data: bytes) -> Interface:
        interface = Interface.from_bytes(data)
        if len(interface.inputs) != len(self._model.inputs):
            raise ValueError("its number of inputs is not the model's")
        count = len(self.plan.declared_shapes.symbols)
        if any(not 0 <= symbol < count for pair in interface.ties for symbol in pair):
            raise ValueError("it ties symbols that the model does not have")
        return interface

    def _lower(self, trace: Step, record: Record, interface_and_weights: InterfaceAndWeights) -> Step:
        graph, modules = record.outputs["graph"].sha256, record.outputs["modules"].sha256
        interface, weights = interface_and_weights
        truncates = self._model.partition.truncate_double
        recipe = keys.lower(graph, modules, self._model.precisions, self._versions, truncates_double=truncates)
        job = LowerJob(
            program=record.outputs["program"].sha256,
            graph_kind=self._model.source.graph.name,
            precisions=self._model.precisions,
            points=self._points,
            comparison=make_comparison(
                self._model, self.plan.shapes, weights[: interface.program_slot_count], interface.state_inputs
            ),
            truncates_double=truncates,
        )
        return self._verdicts.add_step("lower", recipe, job, producers=(trace.id,))

    @cached_property
    def _points(self) -> tuple[tuple[int, ...], ...]:
        """The values of the symbols at min, opt and max of every profile. Steps compare sizes at these points."""
        shapes = self.plan.shapes
        ends = (profile_sizes(shapes, p, which) for p in self._model.profiles for which in ("min", "opt", "max"))
        return tuple(symbol_values(shapes, sizes) for sizes in dict.fromkeys(ends))

    def _partition(
        self, record: Record, toolchain: ToolchainName, facts: ToolchainFacts, *, is_first: bool
    ) -> tuple[Step, ToolchainPartitions | None]:
        """The partition step for a toolchain, and its result; None for the result if the step has no usable record.

        `record` is that of the lower step. The step of the model's first toolchain (`is_first`) has no suffix in its id."""
        recipe, hit_reason = self._partition_recipe(record, toolchain, facts)
        job = PartitionJob(
            program=record.outputs["program"].sha256,
            graph_kind=self._model.source.graph.name,
            settings=self._model.partition,
            toolchain=toolchain,
            toolchain_version=facts.version,
            opset=facts.opset,
            versions=dict(self._versions),
            points=self._points,
            stand_in=stand_in_of(recipe),  # an accepted recipe may name another parser than `facts`
            plugins=self._plugins,
        )
        suffix = "" if is_first else f"{toolchain}-{facts.version}"
        lower = step_id(self._model.name, "lower")
        step = self._verdicts.add_step(
            "partition", recipe, job, suffix=suffix, producers=(lower,), hit_reason=hit_reason
        )
        partitions = self._verdicts.read_output(step, "partitions", Partitions.from_bytes)
        if step.record is None or partitions is None:
            return self.plan.steps[step.id], None
        outputs = step.record.outputs
        if any(f"program:{partition.graph}" not in outputs for partition in partitions.partitions):
            return self._verdicts.cannot_use(
                step, Reason("corrupt", "its record lacks the program of a partition")
            ), None
        programs = {
            partition.graph: outputs[f"program:{partition.graph}"]
            for partition in partitions.partitions
            if partition.kind == "torch" or self._model.reference
        }
        return step, ToolchainPartitions(partitions, programs)

    def _partition_recipe(
        self, record: Record, toolchain: ToolchainName, facts: ToolchainFacts
    ) -> tuple[Recipe, Reason]:
        """The recipe of the partition step for a toolchain, and the reason if the step is a hit.

        Another machine may have run this step with another parser (`core.planning.acceptance`, rule 4)."""
        recipe = keys.partition(
            record.outputs["graph"].sha256,
            record.outputs["modules"].sha256,
            self._model.partition,
            toolchain,
            facts.version,
            facts.opset,
            self._versions,
            facts.stand_in,
            changes_opset=self._model.source.graph.changes_opset,
            narrows_int64=facts.narrows_int64,
            plugins=self._plugins,
        )
        if not facts.parsers_differ:
            return recipe, RECORDED
        can_partition = facts.has_parser and self._facts.versions is not None
        locked = self._facts.locked_steps
        accepted = acceptance.accepted_partition(self._lookups, recipe, locked, can_partition=can_partition)
        return accepted or (recipe, RECORDED)

    def _plugin_library(self) -> Output | None:
        if self._model.plugins is None:
            return None
        versions = {target: self._facts.toolchains[target].version for target in self._model.targets}
        return self._lookups.plugin_library(self._model, versions)

    @property
    def _plugins(self) -> tuple[Plugin, ...]:
        return () if self._model.plugins is None else self._model.plugins.operators

    def _add_unknown_after_lower(self) -> None:
        partition = self._verdicts.add_unknown("partition", producers=(step_id(self._model.name, "lower"),)).id
        self._add_unknown_after_partition(partition)

    def _add_unknown_after_partition(self, partition: str) -> None:
        self._verdicts.add_unknown("convert", producers=(partition,))
        for target in self._model.targets:
            self._verdicts.add_unknown("engine", target=target.name, producers=(partition,))
        self._verdicts.add_unknown("package", producers=(partition,))
