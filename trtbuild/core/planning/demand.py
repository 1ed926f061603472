"""The backward pass of planning: blobs that are needed must be there.

Rules
1. From the outputs down. A package that is a hit and in place needs nothing; one that is a hit and not in place needs the
   blobs of its files; one that runs needs what its index is made of, too.
2. A step that runs needs the blobs that it reads. What only feeds hits is needed by nobody.
3. A hit that left a blob which is needed and gone runs again (``evicted``), and then needs what it reads itself. What a
   weights file provides is never gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.packaging import Contents
from trtbuild.core.planning.comparison import Comparison
from trtbuild.core.planning.graph import ModelPlan, Step, step_id
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.core.planning.lookups import Lookups
from trtbuild.core.planning.verdicts import GONE
from trtbuild.core.recipes.record import Record

#: (id of the step that left it, SHA-256) of a blob.
Needed = tuple[str, str]


def demand(plan: ModelPlan, look: Lookups, in_place: Callable[[Model, Record], bool]) -> None:
    """Turn hits whose blobs are needed and gone into runs. `in_place` says whether all files of a package are where they
    belong already."""
    package, contents = plan.package, plan.contents
    wanted: list[Needed] = []
    if package is not None and contents is not None and package.verdict in ("hit", "run"):
        if package.verdict == "hit" and package.record is not None:
            if in_place(plan.model, package.record):
                return
            if not all(look.has(package.record.outputs[name].sha256) for name in ("index", "names")):
                package = plan.run_again(package, GONE)
        wanted += _for_files(plan, contents)
        if package.verdict == "run":
            wanted += _for_index(plan, contents)
    for step in list(plan.steps.values()):
        if step.verdict == "run":
            wanted += inputs_of(step)
    while wanted:
        producer, sha256 = wanted.pop()
        step = plan.steps[producer]
        if step.verdict == "hit" and sha256 not in plan.file_weights and not look.has(sha256):
            wanted += inputs_of(plan.run_again(step, GONE))


def inputs_of(step: Step) -> Iterator[Needed]:
    """The blobs that a step's worker reads, with the steps that left them."""
    if isinstance(step.job, LowerJob | PartitionJob | ConvertJob):
        yield step.after[0], step.job.program
    if isinstance(step.job, LowerJob):
        yield from ((step.after[0], sha256) for sha256 in weights_of(step))
    if isinstance(step.job, EngineJob):
        yield step.after[0], step.job.onnx
        yield from ((step.after[1], sha256) for sha256 in weights_of(step))


def weights_of(step: Step) -> list[str]:
    """The weights that a step's worker reads, by SHA-256: those of an engine, and those that lowering is compared with."""
    reader = step.job.comparison if isinstance(step.job, LowerJob) else step.job
    return [weight.sha256 for weight in reader.weights] if isinstance(reader, Comparison | EngineJob) else []


def _for_files(plan: ModelPlan, contents: Contents) -> Iterator[Needed]:
    """What the files of a package hold."""
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


def _for_index(plan: ModelPlan, contents: Contents) -> Iterator[Needed]:
    """What the package step reads to make the index and the table of names."""
    yield step_id(plan.model.name, "lower"), contents.modules.sha256
    for step in plan.steps.values():
        if step.stage == "convert" and step.record is not None:
            yield step.id, step.record.outputs["origins"].sha256
