"""The convert and engine steps of a plan, for the partitions that TensorRT runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.plugins import has_library, plugins_of
from trtbuild.core.model.spec import Target
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.planning.expand import engine_job
from trtbuild.core.planning.graph import ModelPlan, Step, step_id
from trtbuild.core.planning.jobs import ConvertJob
from trtbuild.core.planning.lookups import Lookups, ToolchainFacts
from trtbuild.core.planning.planned_package import InterfaceAndWeights
from trtbuild.core.planning.verdicts import Verdicts
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record


class EnginePlanner:
    """Adds convert and engine steps to a plan, for targets whose partition step has a record."""

    def __init__(
        self,
        plan: ModelPlan,
        verdicts: Verdicts,
        lookups: Lookups,
        interface_and_weights: InterfaceAndWeights,
        versions: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._verdicts = verdicts
        self._lookups = lookups
        self._interface, self._weights = interface_and_weights
        self._versions = versions
        self._environment = environment
        #: ``id(partition)`` → its engine job for the first target.
        self._jobs: dict[int, EngineJob] = {}
        self._settings_by_workspace: dict[int | None, BuilderSettings] = {}

    def add_engines(
        self, partition_step: Step, partitions: Partitions, target: Target, facts: ToolchainFacts
    ) -> dict[tuple[str, str], Step]:
        """Add the convert and engine steps for one target. `partitions` is the result of `partition_step`.

        Returns the engine steps, by partition and target."""
        tensorrt_partitions = [partition for partition in partitions.partitions if partition.kind == "tensorrt"]
        self._lookups.prefetch(lambda: [self._convert_recipe(partition, facts) for partition in tensorrt_partitions])
        convert_steps = [
            (partition, self._convert(partition_step, partition, facts)) for partition in tensorrt_partitions
        ]
        self._lookups.prefetch(
            lambda: [
                keys.engine(self._job(partition, target, facts, step.record), self._environment)
                for partition, step in convert_steps
                if step.record is not None
            ]
        )
        return {
            (partition.name, target.name): self._engine(partition, target, facts, step)
            for partition, step in convert_steps
        }

    def _convert_recipe(self, partition: Partition, facts: ToolchainFacts) -> Recipe:
        plugins = plugins_of(self._plan.model.plugins, partition.plugins)
        return keys.convert(partition.graph, facts.opset, self._versions, plugins)

    def _convert(self, partition_step: Step, partition: Partition, facts: ToolchainFacts) -> Step:
        model, suffix = self._plan.model, suffix_of(partition_step)
        existing_step = self._plan.steps.get(step_id(model.name, "convert", partition.name, suffix))
        if existing_step is not None:
            return existing_step
        if partition_step.record is None:
            raise AssertionError("a convert step needs the record of its partition step")
        program = partition_step.record.outputs[f"program:{partition.graph}"].sha256
        plugins = plugins_of(model.plugins, partition.plugins)
        job = ConvertJob(program, model.source.graph.name, facts.opset, plugins)
        recipe = self._convert_recipe(partition, facts)
        producers = (partition_step.id,)
        return self._verdicts.add_step(
            "convert", recipe, job, partition=partition.name, suffix=suffix, producers=producers
        )

    def _engine(self, partition: Partition, target: Target, facts: ToolchainFacts, convert_step: Step) -> Step:
        slots = self._interface.slots
        producers = (convert_step.id, step_id(self._plan.model.name, "trace"))
        if convert_step.record is None:
            return self._verdicts.add_unknown("engine", partition.name, target=target.name, producers=producers)
        job = self._job(partition, target, facts, convert_step.record)
        recipe = keys.engine(job, self._environment)
        return self._verdicts.add_step(
            "engine",
            recipe,
            job,
            partition=partition.name,
            target=target.name,
            producers=producers,
            names=lambda: {f"weights.w{k}": slots[slot].name for k, slot in enumerate(partition.weights)},
        )

    def _job(self, partition: Partition, target: Target, facts: ToolchainFacts, conversion: Record) -> EngineJob:
        plan, onnx, settings = self._plan, conversion.outputs["onnx"].sha256, self._settings(facts)
        similar_job = self._jobs.get(id(partition))  # weights and profiles are the same for every target
        if similar_job is not None:
            return replace(similar_job, onnx=onnx, settings=settings, target=target, toolchain_version=facts.version)
        job = engine_job(plan.model, plan.shapes, partition, onnx, self._weights, settings, target, facts.version)
        if has_library(plan.model.plugins, partition.plugins) and plan.plugin_library is not None:
            job = replace(job, plugin_library=plan.plugin_library.sha256)
        self._jobs[id(partition)] = job
        return job

    def _settings(self, facts: ToolchainFacts) -> BuilderSettings:
        """The builder settings for a toolchain, with the toolchain's workspace if the manifest sets none.

        Targets with the same workspace share one object."""
        settings = self._plan.model.builder
        if settings.workspace is not None:
            return settings
        if facts.workspace not in self._settings_by_workspace:
            self._settings_by_workspace[facts.workspace] = replace(settings, workspace=facts.workspace)
        return self._settings_by_workspace[facts.workspace]


def suffix_of(partition_step: Step) -> str:
    """The suffix in the id of a partition step: empty for the model's first toolchain."""
    return partition_step.id.partition("/partition")[2].removeprefix("@")
