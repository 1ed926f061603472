"""What has to be done for one model, and why: verdicts and reasons, from records alone.

Rules
1. Steps are looked at in the order of the graph. As long as a record is there, the next step's recipe is known; after
   the first one that has to run, the steps below are ``unknown`` (early cut-off may still make hits of them).
2. A verdict gets its reason here, where it is made, and nowhere else.
3. From the outputs down: a hit whose blobs nobody needs is a hit even if they are gone. A hit whose blobs are needed
   and gone runs again (``evicted``).
4. On a hit the stored recipe is compared in full with the wanted one; a difference is a miss (``corrupt``).
5. Neither torch nor TensorRT is needed: versions come as facts, and a machine without torch accepts a trace record
   whose dependencies match, with the versions that it was made with (`Facts.versions` is None).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from trtbuild.core import chain, keys
from trtbuild.core.binding import Interface, bind, names_of, weights_from_json
from trtbuild.core.dependency import Dependency, Observation
from trtbuild.core.encoding import Value
from trtbuild.core.engine_job import Weight
from trtbuild.core.expand import engine_job
from trtbuild.core.graph import Reason, Stage, Step, step_id
from trtbuild.core.packaging import Contents, Cut, Engine
from trtbuild.core.partitions import Partition, Partitions
from trtbuild.core.recipe import Recipe, changes
from trtbuild.core.record import Record
from trtbuild.core.shapes import ShapePlan
from trtbuild.core.spec import Model, Target


@dataclass(frozen=True)
class ToolchainFacts:
    """What a target's toolchain contributes to recipes: its exact version, the ONNX opset that it takes, and the workspace
    (bytes) that no `workspace` setting means there; None where the library decides by nothing but itself."""

    version: str
    opset: int
    workspace: int | None = None


@dataclass(frozen=True)
class Facts:
    """What this machine contributes. `versions` (torch, onnx, onnxscript, python) is None where torch is missing."""

    platform: str
    versions: Mapping[str, str] | None
    toolchains: Mapping[Target, ToolchainFacts]
    environment: Mapping[str, str]  # what engine workers get


class Lookups(Protocol):
    """Everything that planning asks of the world."""

    def record(self, key: str) -> Record | None:
        """The record under a key, wherever it is."""

    def source_of(self, key: str) -> str:
        """Where that record came from: ``local``, or a remote's name."""

    def blob(self, sha256: str) -> bytes:
        """A small blob's bytes. Raises BlobMissing or EntryCorrupt."""

    def has(self, sha256: str) -> bool:
        """Whether a blob is there."""

    def observe(self, dependency: Dependency) -> str:
        """What there is to see of a dependency now."""

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        """The dependencies that a link of the chain names."""

    def last_recipe(self, step: str) -> Recipe | None:
        """The recipe that the step of this id last had, in this project."""

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        """Name → weight of the model's weights file; None when it has none."""

    def overruled(self, step: str, key: str) -> Reason | None:
        """Why the step has to run whatever the records say (``--force``, not cacheable), or None."""


@dataclass
class ModelPlan:
    """The steps of one model by id, in graph order, and what is known of its results."""

    model: Model
    shapes: ShapePlan
    steps: dict[str, Step] = field(default_factory=dict)
    declared: tuple[tuple[str, Value], ...] = ()
    observations: tuple[Observation, ...] = ()
    #: What the package step puts together, once all engines have keys.
    contents: Contents | None = None
    #: Digests of blobs that a weights file provides.
    file_weights: frozenset[str] = frozenset()

    @property
    def package(self) -> Step | None:
        return self.steps.get(step_id(self.model.name, "package"))


def plan_model(
    model: Model, shapes: ShapePlan, facts: Facts, look: Lookups, in_place: Callable[[Model, Record], bool]
) -> ModelPlan:
    """The plan for one model. `in_place` says whether all files of a package are where they belong already."""
    planner = _Planner(model, shapes, facts, look)
    planner.forward()
    planner.demand(in_place)
    return planner.plan


class _Planner:
    def __init__(self, model: Model, shapes: ShapePlan, facts: Facts, look: Lookups) -> None:
        self.plan = ModelPlan(model, shapes)
        self._model = model
        self._facts = facts
        self._versions: Mapping[str, str] = facts.versions or {}
        self._look = look
        self._accepted = False

    # -- forward: recipes and records, in the order of the graph

    def forward(self) -> None:
        """Every step whose recipe is known, and one unknown step for each stage below that."""
        table = self._look.weights_table(self._model)
        self.plan.file_weights = frozenset(weight.sha256 for weight in (table or {}).values())
        trace = self._trace(table)
        if trace.record is None:
            self._unknown("lower", after=(trace.id,))
            self._unknown_after_lower()
            return
        lower = self._lower(trace, trace.record)
        if lower.record is None:
            self._unknown_after_lower()
            return
        interface = Interface.from_bytes(self._output(trace.record, "interface"))
        traced = weights_from_json(json.loads(self._output(trace.record, "weights")))
        weights = bind(interface, traced, table)
        cuts: dict[tuple[str, ToolchainFacts], tuple[Step, Cut | None]] = {}
        engines: dict[tuple[str, str], Step] = {}
        for target in self._model.targets:
            facts = self._facts.toolchains[target]
            group = (target.toolchain, facts)
            if group not in cuts:
                cuts[group] = self._partition(lower, lower.record, target.toolchain, facts, first=not cuts)
            step, cut = cuts[group]
            if cut is None:
                self._unknown("engine", target=target.name, after=(step.id,))
                continue
            for part in cut.partitions.partitions:
                if part.kind == "tensorrt":
                    converted = self._convert(step, part, facts)
                    engines[part.name, target.name] = self._engine(part, target, facts, converted, weights)
        self._package(trace.record, lower.record, interface, weights, cuts, engines)

    def _output(self, record: Record, name: str) -> bytes:
        return self._look.blob(record.outputs[name].sha256)

    def _trace(self, table: Mapping[str, Weight] | None) -> Step:
        plan, model = self.plan, self._model
        plan.declared = keys.trace_declared(
            model, plan.shapes, names_of(table), self._facts.platform, self._facts.versions
        )
        plan.observations = chain.follow(plan.declared, self._look.read_link, self._look.observe)
        recipe = keys.trace(plan.declared, plan.observations)
        if self._facts.versions is None:
            recipe = self._accept_a_trace(recipe)
        names = names_of(table)
        job = {"weights": None if names is None else [[name, dtype, list(shape)] for name, dtype, shape in names]}
        return self._look_up("trace", recipe, job)

    def _accept_a_trace(self, anyone: Recipe) -> Recipe:
        """Without torch: the recipe of a trace that was made from the same files, whatever the versions."""
        pointer = self._look.record(keys.any_trace(anyone).key)
        if pointer is None:
            return anyone
        accepted = Record.from_bytes(self._output(pointer, "record")).recipe
        versions = dict(accepted.parts).get("versions")
        if isinstance(versions, Mapping):
            self._versions = {name: str(version) for name, version in versions.items()}
            self._accepted = True
            return accepted
        return anyone

    def _lower(self, trace: Step, record: Record) -> Step:
        recipe = keys.lower(record.outputs["graph"].sha256, self._model.precision, self._versions)
        job = {"program": record.outputs["program"].sha256, "precision": self._model.precision}
        return self._look_up("lower", recipe, job, after=(trace.id,))

    def _partition(
        self, lower: Step, record: Record, toolchain: str, facts: ToolchainFacts, *, first: bool
    ) -> tuple[Step, Cut | None]:
        graph, modules = record.outputs["graph"].sha256, record.outputs["modules"].sha256
        settings = self._model.partition
        recipe = keys.partition(graph, modules, settings, toolchain, facts.version, facts.opset, self._versions)
        job = {
            "program": record.outputs["program"].sha256,
            "settings": keys.fields_of(settings),
            "toolchain": toolchain,
            "toolchain_version": facts.version,
            "opset": facts.opset,
            "versions": dict(self._versions),
        }
        suffix = "" if first else f"{toolchain}-{facts.version}"
        step = self._look_up("partition", recipe, job, target=suffix, after=(lower.id,))
        if step.record is None:
            return step, None
        partitions = Partitions.from_bytes(self._output(step.record, "partitions"))
        programs = {
            part.graph: step.record.outputs[f"program:{part.graph}"]
            for part in partitions.partitions
            if part.kind == "torch"
        }
        return step, Cut(partitions, programs)

    def _convert(self, cut: Step, part: Partition, facts: ToolchainFacts) -> Step:
        suffix = cut.id.partition("@")[2]
        known = self.plan.steps.get(step_id(self._model.name, "convert", part.name, suffix))
        if known is not None:
            return known
        if cut.record is None:
            raise AssertionError("convert is planned after partition")
        job = {"program": cut.record.outputs[f"program:{part.graph}"].sha256, "opset": facts.opset}
        recipe = keys.convert(part.graph, facts.opset, self._versions)
        return self._look_up("convert", recipe, job, part=part.name, target=suffix, after=(cut.id,))

    def _engine(
        self, part: Partition, target: Target, facts: ToolchainFacts, converted: Step, weights: Sequence[Weight]
    ) -> Step:
        after = (converted.id, step_id(self._model.name, "trace"))
        if converted.record is None:
            return self._unknown("engine", part.name, target.name, after=after)
        onnx = converted.record.outputs["onnx"].sha256
        settings = self._model.builder
        if settings.workspace is None:
            settings = replace(settings, workspace=facts.workspace)
        job = engine_job(self._model, self.plan.shapes, part, onnx, weights, settings, target, facts.version)
        recipe = keys.engine(job, self._facts.environment)
        return self._look_up("engine", recipe, job.to_json(), part=part.name, target=target.name, after=after)

    def _package(
        self,
        trace: Record,
        lower: Record,
        interface: Interface,
        weights: Sequence[Weight],
        cuts: Mapping[tuple[str, ToolchainFacts], tuple[Step, Cut | None]],
        engines: Mapping[tuple[str, str], Step],
    ) -> None:
        after = tuple(dict.fromkeys([*(e.id for e in engines.values()), *(step.id for step, _ in cuts.values())]))
        facts = self._facts.toolchains
        by_target: dict[str, Cut] = {}
        for target in self._model.targets:
            cut = cuts[target.toolchain, facts[target]][1]
            if cut is not None:
                by_target[target.name] = cut
        if len(by_target) < len(self._model.targets) or any(step.recipe is None for step in engines.values()):
            self._unknown("package", after=after)
            return
        origins = {}
        for step in self.plan.steps.values():
            if step.stage == "convert" and step.record is not None and step.recipe is not None:
                origins[str(dict(step.recipe.parts)["graph"])] = step.record.outputs["origins"].sha256
        self.plan.contents = contents = Contents(
            model=self._model,
            shapes=self.plan.shapes,
            interface=interface,
            weights=weights,
            modules=lower.outputs["modules"],
            cuts=by_target,
            engines=[
                Engine(part, target, step.key or "", step.record.outputs["plan"] if step.record else None)
                for (part, target), step in engines.items()
            ],
            toolchains={target.name: facts[target].version for target in self._model.targets},
            origins=origins,
        )
        step = self._look_up("package", contents.recipe(), {}, after=after)
        plans = {f"{e.partition}@{e.target}": e.plan.sha256 for e in contents.engines if e.plan is not None}
        if step.record is not None and step.record.provenance.get("plans") != plans:
            self._rerun(step, "its engines were built again")

    # -- one step

    def _look_up(
        self,
        stage: Stage,
        recipe: Recipe,
        job: Mapping[str, object],
        *,
        part: str = "",
        target: str = "",
        after: tuple[str, ...] = (),
    ) -> Step:
        identifier = step_id(self._model.name, stage, part, target)
        shown = target if stage == "engine" else None
        step = Step(identifier, self._model.name, stage, "run", Reason("new", ""), shown, recipe, None, job, after)
        overruled = self._look.overruled(identifier, recipe.key)
        record = self._look.record(recipe.key) if overruled is None else None
        if overruled is not None:
            step = replace(step, reason=overruled)
        elif record is None:
            step = replace(step, reason=self._why_missing(identifier, recipe))
        elif not record.recipe.same_as(recipe):
            step = replace(step, reason=Reason("corrupt", "the record under its key was made by another recipe"))
        else:
            source = self._look.source_of(recipe.key)
            step = replace(step, verdict="hit", record=record, source=source, reason=self._recorded(stage))
        self.plan.steps[identifier] = step
        return step

    def _recorded(self, stage: Stage) -> Reason:
        if stage == "trace" and self._accepted:
            made_with = ", ".join(f"{name} {version}" for name, version in self._versions.items())
            return Reason("recorded", f"made elsewhere with {made_with}; accepted because torch is not installed here")
        return Reason("recorded", "nothing that it depends on has changed")

    def _why_missing(self, identifier: str, recipe: Recipe) -> Reason:
        last = self._look.last_recipe(identifier)
        if last is None:
            return Reason("new", "it was not built in this project before")
        if last.same_as(recipe):
            return Reason("evicted", "it was built before, but the cache no longer has it")
        found = changes(last, recipe)
        named = ", ".join(change.part for change in found[:3]) + (", …" if len(found) > 3 else "")
        return Reason("changed", f"changed: {named}", found)

    def _unknown(self, stage: Stage, part: str = "", target: str = "", *, after: tuple[str, ...]) -> Step:
        identifier = step_id(self._model.name, stage, part, target)
        reason = Reason("new", f"known when {after[0]} has run" if after else "")
        shown = target if stage == "engine" else None
        step = Step(identifier, self._model.name, stage, "unknown", reason, shown, after=after)
        self.plan.steps[identifier] = step
        return step

    def _unknown_after_lower(self) -> None:
        self._unknown("partition", after=(step_id(self._model.name, "lower"),))
        for target in self._model.targets:
            self._unknown("engine", target=target.name, after=(step_id(self._model.name, "partition"),))
        self._unknown("package", after=(step_id(self._model.name, "partition"),))

    # -- backward: what is needed must be there

    def demand(self, in_place: Callable[[Model, Record], bool]) -> None:
        """Turn hits whose blobs are needed and gone into runs, from the outputs down."""
        wanted: list[tuple[str, str]] = []
        package, contents = self.plan.package, self.plan.contents
        if package is not None and contents is not None and package.record is not None:
            if package.verdict == "hit" and in_place(self._model, package.record):
                return
            if package.verdict == "hit" and not self._look.has(package.record.outputs["index"].sha256):
                self._rerun(package, "what it left is no longer in the cache")
        if package is not None and contents is not None:
            wanted += self._package_blobs(contents)
        for step in list(self.plan.steps.values()):
            if step.verdict == "run":
                wanted += self._job_blobs(step)
        while wanted:
            producer, sha256 = wanted.pop()
            step = self.plan.steps[producer]
            if step.verdict == "hit" and sha256 not in self.plan.file_weights and not self._look.has(sha256):
                wanted += self._job_blobs(self._rerun(step, "what it left is no longer in the cache"))

    def _rerun(self, step: Step, why: str) -> Step:
        # its record stays: recipes below follow from it, and running it again leaves the same outputs
        changed = replace(step, verdict="run", reason=Reason("evicted", why), source=None)
        self.plan.steps[step.id] = changed
        return changed

    def _job_blobs(self, step: Step) -> list[tuple[str, str]]:
        """(producer, digest) of the blobs that a step reads when it runs."""
        if step.stage in ("lower", "partition", "convert"):
            return [(step.after[0], str(step.job["program"]))]
        if step.stage == "engine":
            weights = step.job["weights"]
            if not isinstance(weights, Sequence):
                raise AssertionError("an engine job lists its weights")
            digests = [str(weight["sha256"]) for weight in weights]
            return [(step.after[0], str(step.job["onnx"])), *((step.after[1], sha256) for sha256 in digests)]
        return []

    def _package_blobs(self, contents: Contents) -> list[tuple[str, str]]:
        found = []
        for engine in contents.engines:
            if engine.plan is not None:
                found.append((step_id(self._model.name, "engine", engine.partition, engine.target), engine.plan.sha256))
        cut = next(step.id for step in self.plan.steps.values() if step.stage == "partition")
        for sha256, kind in contents.blobs().items():
            found.append((cut if kind == "program" else step_id(self._model.name, "trace"), sha256))
        return found
