"""The last pass of planning, which makes sure that all needed blobs are available.

Rules
1. The pass visits the steps from the outputs back to the first steps. If the package step is a hit and the package's files
   are in place (already at their paths), nothing is needed. If it is a hit and the files are not in place, the blobs of the
   files are needed. If it runs, the blobs of the files are needed, and the blobs from which it writes the index and the
   table of names.
2. A step that runs needs the blobs that it reads. A blob that only hits would read is not needed.
3. If a needed blob is not in the cache, the hit that produced it becomes a run (``evicted``). Then the blobs that this
   step reads are needed, too. Weights of a weights file, and the library of plugins, are always available, because they
   are files of the project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.contents import PackageContents
from trtbuild.core.planning.comparison import Comparison
from trtbuild.core.planning.graph import ModelPlan, Step, step_id
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob, PlannedTrace
from trtbuild.core.planning.lookups import Lookups
from trtbuild.core.planning.verdicts import EVICTED
from trtbuild.core.recipes.record import Record

#: A needed blob: the id of the step that produces the blob, and the blob's SHA-256.
Needed = tuple[str, str]


def require_blobs(plan: ModelPlan, lookups: Lookups, is_in_place: Callable[[Model, Record], bool]) -> None:
    """Change a hit into a run if a needed blob that the hit produced is not in the cache (rule 3).

    `is_in_place` returns whether all files of a package are already at their paths."""
    package, contents = plan.package, plan.contents
    needed: list[Needed] = []
    if package is not None and contents is not None and package.verdict in ("hit", "run"):
        if package.verdict == "hit" and package.record is not None:
            if is_in_place(plan.model, package.record):
                return
            if not all(lookups.has_blob(package.record.outputs[name].sha256) for name in ("index", "names")):
                package = plan.run_again(package, EVICTED)
        needed += _blobs_of_files(plan, contents)
        if package.verdict == "run":
            needed += _blobs_for_index(plan, contents)
    for step in list(plan.steps.values()):
        if step.verdict == "run":
            needed += blobs_read_by(step)
    while needed:
        producer, sha256 = needed.pop()
        step = plan.steps[producer]
        if step.verdict == "hit" and sha256 not in plan.project_blobs and not lookups.has_blob(sha256):
            needed += blobs_read_by(plan.run_again(step, EVICTED))


def blobs_read_by(step: Step) -> Iterator[Needed]:
    """The blobs that a step's worker reads, with the steps that produce them."""
    if isinstance(step.job, PlannedTrace) and step.job.quantizers is not None:
        yield step.producers[0], step.job.quantizers
    if isinstance(step.job, LowerJob | PartitionJob | ConvertJob):
        yield step.producers[0], step.job.program
    if isinstance(step.job, LowerJob):
        yield from ((step.producers[0], sha256) for sha256 in weights_of(step))
    if isinstance(step.job, EngineJob):
        conversion, trace = step.producers
        yield conversion, step.job.onnx
        yield from ((trace, sha256) for sha256 in weights_of(step))
        if step.job.plugin_library is not None:
            # No step produces the library, a file of the project. So `require_blobs` never runs the trace again for it.
            yield trace, step.job.plugin_library


def weights_of(step: Step) -> list[str]:
    """The SHA-256 of each weight that a step's worker reads, for an engine or for the comparison after lowering."""
    reader = step.job.comparison if isinstance(step.job, LowerJob) else step.job
    return [weight.sha256 for weight in reader.weights] if isinstance(reader, Comparison | EngineJob) else []


def _blobs_of_files(plan: ModelPlan, contents: PackageContents) -> Iterator[Needed]:
    """The blobs that are files of a package, without its index and its table of names."""
    for engine in contents.engines:
        if engine.plan is not None:
            yield step_id(plan.model.name, "engine", engine.partition, engine.target), engine.plan.sha256
        if engine.layers is not None:
            yield step_id(plan.model.name, "engine", engine.partition, engine.target), engine.layers.sha256
    programs = {
        output.sha256: step.id
        for step in plan.steps.values()
        if step.stage == "partition" and step.record is not None
        for output in step.record.outputs.values()
    }
    for sha256, kind in contents.blobs().items():
        yield programs[sha256] if kind == "program" else step_id(plan.model.name, "trace"), sha256


def _blobs_for_index(plan: ModelPlan, contents: PackageContents) -> Iterator[Needed]:
    """The other blobs that the package step reads to write the index and the table of names."""
    yield step_id(plan.model.name, "lower"), contents.modules.sha256
    for step in plan.steps.values():
        if step.stage == "convert" and step.record is not None:
            yield step.id, step.record.outputs["origins"].sha256
