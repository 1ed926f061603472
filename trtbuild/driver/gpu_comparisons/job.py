"""The recipe of a verification, and the job of a comparison on a GPU by a process that does not have the project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trtbuild.core.model.verification import Runner
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.stages.verify.job import VerifyJob


@dataclass(frozen=True)
class ComparisonJob:
    """The job to compare the engines of `target` in a package, on a GPU of the kind `gpu`.

    Blobs are named by their SHA-256: `index` is the index of the package, and `plans` maps partitions to engines. `replay`
    is a file of inputs in place of random inputs. `job` contains no paths, because they are not valid on a worker.
    `program_graph` is the SHA-256 of the traced program's text. `quantized` is whether the model calls quantizers.
    `toolchain` and `version` are those of the target.
    """

    job: VerifyJob
    program_graph: str
    quantized: bool
    index: str
    target: str
    toolchain: str
    version: str
    plans: Mapping[str, str]
    gpu: GpuKind
    replay: str | None = None

    @property
    def reference(self) -> str:
        """The library that computes the reference."""
        return reference_library(self.job)

    @property
    def recipe(self) -> Recipe:
        """The recipe of this verification. Raises KeyError if the machine of `gpu` lacks the reference library."""
        versions = {self.reference: self.gpu.versions[self.reference], self.toolchain: self.version}
        return recipe_of(
            "engine",
            self.job,
            self.program_graph,
            self.plans,
            versions,
            self.gpu.key_facts,
            quantized=self.quantized,
        )

    def blobs(self) -> Iterator[str]:
        """Yield the SHA-256 of every blob that the comparison reads."""
        yield self.index
        yield from self.plans.values()
        yield from self.job.blobs()
        if self.replay is not None:
            yield self.replay


def reference_library(job: VerifyJob) -> str:
    """The library that computes the reference of a job."""
    return "onnxruntime" if job.by_onnx else "torch"


def recipe_of(
    by: Runner,
    job: VerifyJob,
    program_graph: str,
    contents: Mapping[str, str],
    versions: Mapping[str, str],
    machine: Mapping[str, str],
    *,
    quantized: bool,
) -> Recipe:
    """The recipe of a verification by onnxruntime or by engines (`by`).

    `program_graph` is the SHA-256 of the traced program's text. `contents` maps graphs to the SHA-256 of ONNX models, or
    partitions to the SHA-256 of engines. `versions` maps libraries to versions. `machine` has the facts about the machine.
    """
    return keys.verification(
        by,
        program_graph,
        job.partitions,
        contents,
        (*job.weights, *job.first_state),
        job.points,
        job.tolerances,
        versions,
        machine,
        job.ranges,
        quantized=quantized,
        float_model=None if job.float_program is None else (job.float_program.graph, job.float_program.weights),
        has_rounded_weights=job.has_rounded_weights,
    )
