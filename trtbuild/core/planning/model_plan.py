"""The plan of one model: which steps have to run, and why. It follows from records and facts alone.

Rules
1. Steps are planned in the order of the graph. As long as each step has a record, the next step's recipe is known. After
   the first step that has to run, the later steps are ``unknown``. They may still become hits (early cut-off).
2. The code that makes a verdict also writes its reason: `core.planning.verdicts`, or `core.planning.demand`. `demand`
   runs last, from the outputs back to the first steps.
3. Neither torch nor TensorRT is needed: versions come as facts. A machine without torch (`Facts.versions` is None) accepts
   a trace record with matching dependencies, and uses the versions in that record (`core.planning.acceptance`).
4. A package contains the bytes of engines, but its recipe has only their keys. If engines were built again, the package
   step runs again.
5. Documents may be intact and trusted, and still contradict each other: a partition may read a weight that the trace's
   interface does not have. Then the trace runs again. If that does not help, the partition step runs again. A step that
   this command has run is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from trtbuild.core.engines.binding import Interface, bind, names_of, weights_from_json
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.shapes import ShapePlan, symbol_values
from trtbuild.core.model.spec import Model, Target, ToolchainName
from trtbuild.core.packages.packaging import Cut
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.planning import acceptance
from trtbuild.core.planning.comparison import comparison
from trtbuild.core.planning.demand import demand
from trtbuild.core.planning.expand import engine_job, units
from trtbuild.core.planning.graph import ModelPlan, Reason, Step, step_id
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob, WeightHeads
from trtbuild.core.planning.lookups import Facts, Lookups, ToolchainFacts
from trtbuild.core.planning.planned_package import Bound, Cuts, plan_package
from trtbuild.core.planning.verdicts import RECORDED, Verdicts
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.record import Record

__all__ = ["Facts", "Lookups", "ModelPlan", "ToolchainFacts", "plan_model"]


def plan_model(
    model: Model, shapes: ShapePlan, facts: Facts, lookups: Lookups, in_place: Callable[[Model, Record], bool]
) -> ModelPlan:
    """The plan for one model. `in_place` returns whether all files of a package are already at their paths."""
    forward = _Forward(model, shapes, facts, lookups)
    forward.plan_all()
    demand(forward.plan, lookups, in_place)
    return forward.plan


class _Forward:
    """The forward pass: recipes, records and verdicts, in the order of the graph."""

    def __init__(self, model: Model, shapes: ShapePlan, facts: Facts, lookups: Lookups) -> None:
        self.plan = ModelPlan(model, shapes)
        self._model = model
        self._facts = facts
        self._versions: Mapping[str, str] = facts.versions or {}
        self._lookups = lookups
        self._verdicts = Verdicts(self.plan, lookups)
        self._jobs: dict[int, EngineJob] = {}

    def plan_all(self) -> None:
        """Add every step whose recipe is known, and one unknown step for each later stage."""
        table = self._lookups.weights_table(self._model)
        self.plan.file_weights = frozenset(weight.sha256 for weight in (table or {}).values())
        trace = self._trace(table)
        bound = self._bind(trace, table)
        if trace.record is None or bound is None:
            self._verdicts.unknown("lower", after=(trace.id,))
            self._unknown_below_lower()
            return
        lower = self._lower(trace, trace.record, bound)
        if lower.record is None:
            self._unknown_below_lower()
            return
        try:
            self._after_lower(lower.record, bound)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            if not self._rerun_producer(trace):
                raise

    def _after_lower(self, lower: Record, bound: Bound) -> None:
        """Add all steps after lower. Documents that contradict each other may raise any error (rule 5)."""
        cuts: Cuts = {}
        engines: dict[tuple[str, str], Step] = {}
        for target in self._model.targets:
            facts = self._facts.toolchains[target]
            toolchain = (target.toolchain, facts)
            if toolchain not in cuts:
                cuts[toolchain] = self._partition(lower, target.toolchain, facts, first=not cuts)
            step, cut = cuts[toolchain]
            if cut is None:
                self._verdicts.unknown("convert", suffix=_suffix(step), after=(step.id,))
                self._verdicts.unknown("engine", target=target.name, after=(step.id,))
                continue
            engines |= self._engines(step, cut, target, facts, bound)
        plan_package(self.plan, self._verdicts, self._facts, lower, bound, cuts, engines)

    def _rerun_producer(self, trace: Step) -> bool:
        """Change into a run the first step whose documents may be wrong and that this command has not run (rule 5).

        Returns False if there is no such step."""
        reason = Reason("corrupt", "its output does not match the outputs of later steps")
        partition_steps = [
            step for step in self.plan.steps.values() if step.stage == "partition" and step.verdict == "hit"
        ]
        lower = self.plan.steps[step_id(self._model.name, "lower")]
        self.plan.contents = None
        if trace.verdict == "hit" and not self._lookups.was_run(trace.id):
            self.plan.steps = {trace.id: trace}
            self._verdicts.cannot_use(trace, reason)
            self._verdicts.unknown("lower", after=(trace.id,))
            self._unknown_below_lower()
            return True
        for step in partition_steps:
            if not self._lookups.was_run(step.id):
                self.plan.steps = {trace.id: trace, lower.id: lower, step.id: step}
                self._verdicts.cannot_use(step, reason)
                self._unknown_below(step.id)
                return True
        return False

    # -- the stages

    def _trace(self, table: Mapping[str, Weight] | None) -> Step:
        plan, names, facts, lookups = self.plan, names_of(table), self._facts, self._lookups
        declared = partial(keys.trace_declared, self._model, plan.declared_shapes, names, facts.platform)
        plan.declared, can_trace = declared(facts.versions), facts.versions is not None
        accepted = None if can_trace else acceptance.locked_trace(lookups, plan.declared, facts.locked)
        if accepted is None:
            plan.observations = chain.follow(
                plan.declared, lookups.read_link, lookups.observe, lookups.ahead, lookups.expect
            )
            if not can_trace:
                accepted = acceptance.trace_of_same_files(lookups, plan.declared, plan.observations, facts.locked)
        if accepted is not None:
            recipe, hit, self._versions = accepted.recipe, accepted.reason, accepted.versions
            plan.observations = accepted.observations
        else:
            wanted = declared(facts.locked.versions) if not can_trace and facts.locked else plan.declared
            recipe, hit = keys.trace(wanted, plan.observations), RECORDED
        job = WeightHeads(None if names is None else tuple((name, dtype, tuple(shape)) for name, dtype, shape in names))
        return self._verdicts.look_up("trace", recipe, job, hit=hit)

    def _bind(self, trace: Step, table: Mapping[str, Weight] | None) -> Bound | None:
        """The interface of the traced program, and the weight of each slot; None if a document cannot be used."""
        interface = self._verdicts.read(trace, "interface", self._interface)
        if interface is None:
            return None
        weights = self._verdicts.read(
            trace, "weights", lambda data: bind(interface, weights_from_json(json.loads(data)), table)
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

    def _lower(self, trace: Step, record: Record, bound: Bound) -> Step:
        graph, modules = record.outputs["graph"].sha256, record.outputs["modules"].sha256
        truncates = self._model.partition.truncate_double
        recipe = keys.lower(graph, modules, self._model.precision, self._versions, truncates_double=truncates)
        job = LowerJob(
            program=record.outputs["program"].sha256,
            graph_kind=self._model.source.graph.name,
            precision=self._model.precision,
            operators=tuple(bound[0].operators),
            points=self._points(),
            comparison=comparison(self._model, self.plan.shapes, bound[1]),
            truncates_double=truncates,
        )
        return self._verdicts.look_up("lower", recipe, job, after=(trace.id,))

    def _points(self) -> tuple[tuple[int, ...], ...]:
        """The values of the symbols at min, opt and max of every profile. The steps compare sizes at these points."""
        shapes = self.plan.shapes
        ends = (symbol_values(shapes, p, which) for p in self._model.profiles for which in ("min", "opt", "max"))
        return tuple(units(shapes, sizes) for sizes in dict.fromkeys(ends))

    def _partition(
        self, record: Record, toolchain: ToolchainName, facts: ToolchainFacts, *, first: bool
    ) -> tuple[Step, Cut | None]:
        """The partition step for a toolchain, and its result if it has a record. `record` is the record of lower."""
        graph, modules = record.outputs["graph"].sha256, record.outputs["modules"].sha256
        settings = self._model.partition
        recipe = keys.partition(
            graph,
            modules,
            settings,
            toolchain,
            facts.version,
            facts.opset,
            self._versions,
            facts.stand_in,
            lowers=self._model.source.graph.changes_opset,
            narrows=facts.narrows_int64,
        )
        hit = RECORDED
        if facts.parsers_differ:
            locked, can_partition = self._facts.locked, facts.can_ask_parser and self._facts.versions is not None
            accepted = acceptance.partition(self._lookups, recipe, locked, can_partition=can_partition)
            recipe, hit = accepted or (recipe, hit)
        job = PartitionJob(
            program=record.outputs["program"].sha256,
            graph_kind=self._model.source.graph.name,
            settings=settings,
            toolchain=toolchain,
            toolchain_version=facts.version,
            opset=facts.opset,
            versions=dict(self._versions),
            points=self._points(),
            stand_in=keys.stand_in_of(recipe),  # an accepted recipe may name another parser than `facts`
        )
        suffix = "" if first else f"{toolchain}-{facts.version}"
        lower = step_id(self._model.name, "lower")
        step = self._verdicts.look_up("partition", recipe, job, suffix=suffix, after=(lower,), hit=hit)
        partitions = self._verdicts.read(step, "partitions", Partitions.from_bytes)
        if step.record is None or partitions is None:
            return self.plan.steps[step.id], None
        outputs = step.record.outputs
        if any(f"program:{part.graph}" not in outputs for part in partitions.partitions):
            return self._verdicts.cannot_use(
                step, Reason("corrupt", "its record lacks the program of a partition")
            ), None
        programs = {
            part.graph: outputs[f"program:{part.graph}"]
            for part in partitions.partitions
            if part.kind == "torch" or self._model.reference
        }
        return step, Cut(partitions, programs)

    def _convert(self, partition_step: Step, part: Partition, facts: ToolchainFacts) -> Step:
        suffix = _suffix(partition_step)
        known = self.plan.steps.get(step_id(self._model.name, "convert", part.name, suffix))
        if known is not None:
            return known
        if partition_step.record is None:
            raise AssertionError("a convert step needs the record of its partition step")
        program = partition_step.record.outputs[f"program:{part.graph}"].sha256
        job = ConvertJob(program, self._model.source.graph.name, facts.opset)
        recipe = keys.convert(part.graph, facts.opset, self._versions)
        after = (partition_step.id,)
        return self._verdicts.look_up("convert", recipe, job, part=part.name, suffix=suffix, after=after)

    def _engines(
        self, step: Step, cut: Cut, target: Target, facts: ToolchainFacts, bound: Bound
    ) -> dict[tuple[str, str], Step]:
        """Add the convert and engine steps for one target. Returns the engine steps, by partition and target."""
        parts = [part for part in cut.partitions.partitions if part.kind == "tensorrt"]
        self._lookups.expect(lambda: [keys.convert(part.graph, facts.opset, self._versions) for part in parts])
        converted = [(part, self._convert(step, part, facts)) for part in parts]
        environment = self._facts.environment
        self._lookups.expect(
            lambda: [
                keys.engine(self._job(part, target, facts, conversion.record, bound), environment)
                for part, conversion in converted
                if conversion.record is not None
            ]
        )
        return {
            (part.name, target.name): self._engine(part, target, facts, conversion, bound)
            for part, conversion in converted
        }

    def _engine(
        self,
        part: Partition,
        target: Target,
        facts: ToolchainFacts,
        converted: Step,
        bound: Bound,
    ) -> Step:
        interface, _ = bound
        after = (converted.id, step_id(self._model.name, "trace"))
        if converted.record is None:
            return self._verdicts.unknown("engine", part.name, target=target.name, after=after)
        job = self._job(part, target, facts, converted.record, bound)
        recipe = keys.engine(job, self._facts.environment)
        return self._verdicts.look_up(
            "engine",
            recipe,
            job,
            part=part.name,
            target=target.name,
            after=after,
            names=lambda: {f"weights.w{k}": interface.slots[slot].name for k, slot in enumerate(part.weights)},
        )

    def _job(
        self,
        part: Partition,
        target: Target,
        facts: ToolchainFacts,
        converted: Record,
        bound: Bound,
    ) -> EngineJob:
        onnx = converted.outputs["onnx"].sha256
        settings = self._model.builder
        if settings.workspace is None:
            settings = replace(settings, workspace=facts.workspace)
        known = self._jobs.get(id(part))  # weights and profiles are the same for every target
        if known is not None:
            return replace(known, onnx=onnx, settings=settings, target=target, toolchain_version=facts.version)
        job = engine_job(self._model, self.plan.shapes, part, onnx, bound[1], settings, target, facts.version)
        self._jobs[id(part)] = job
        return job

    def _unknown_below_lower(self) -> None:
        partition = self._verdicts.unknown("partition", after=(step_id(self._model.name, "lower"),)).id
        self._unknown_below(partition)

    def _unknown_below(self, partition: str) -> None:
        self._verdicts.unknown("convert", after=(partition,))
        for target in self._model.targets:
            self._verdicts.unknown("engine", target=target.name, after=(partition,))
        self._verdicts.unknown("package", after=(partition,))


def _suffix(partition_step: Step) -> str:
    """The suffix in the id of a partition step: empty for the model's first toolchain."""
    return partition_step.id.partition("/partition")[2].removeprefix("@")
