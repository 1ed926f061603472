"""A model of a verification, with its plan and points, and the types of its comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from trtbuild.core.model import verification
from trtbuild.core.model.comparisons import Report
from trtbuild.core.model.verification import Point
from trtbuild.core.model.verified import NotRun
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.gpu_comparisons.job import recipe_of
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.verification import records
from trtbuild.driver.verification.cuts import CutVerification
from trtbuild.driver.verification.document import Options
from trtbuild.driver.verification.replay import replayed_point

#: The folder for the inputs with the largest errors, relative to the project.
WORST_INPUTS_FOLDER = f"{STATE_FOLDER}/verify"


@dataclass(frozen=True)
class FinishedComparison:
    """A finished comparison of one cut. (A cut is the result of a partition step.)

    `machine` has the facts about the machine that compared. `record` is None if the report is not stored. `recorded` is
    whether the report was read from a record. `worker` is the Dask worker that compared, or None.
    """

    cut: CutVerification
    recipe: Recipe
    machine: Mapping[str, str]
    report: Report
    record: Record | None
    recorded: bool
    worker: str | None = None


@dataclass(frozen=True)
class PendingComparison:
    """A comparison that may be running or not begun. `finish` waits for its result, or runs it.

    `finish` raises NotCompared or another TrtbuildError."""

    targets: Sequence[str]
    finish: Callable[[], FinishedComparison]


class EngineComparisons(Protocol):
    """Compares the engines of models.

    `engine_comparisons.OnThisMachine` and `worker_comparisons.OnWorkers` implement this protocol.
    """

    def comparisons(
        self, model: VerifiedModel, cut: CutVerification, number: int
    ) -> Iterator[PendingComparison | NotRun]:
        """Yield the comparisons of a cut's engines. `number` is the index of the cut in the model."""


class VerifiedModel:
    """A model of a project, and the options with which it is verified.

    `versions` are the versions of onnxruntime, torch and onnx. `reads_records` is whether earlier results are used.
    """

    def __init__(
        self, workspace: Workspace, name: str, options: Options, versions: Mapping[str, str], *, force: bool
    ) -> None:
        self.workspace = workspace
        self.name = name
        self.options = options
        self.versions = versions
        self.reads_records = not force and options.replay is None
        self.plan: ModelPlan = workspace.plan_without_outputs(name)
        self.platform = workspace.facts[name].platform
        model, shapes = self.plan.model, self.plan.shapes
        self.replay = None if options.replay is None else Path(options.replay).absolute()
        if self.replay is not None:
            self.points: tuple[Point, ...] = (replayed_point(self.replay, model, shapes),)
        else:
            self.points = verification.points_of_model(model, shapes, count=options.points, seed=options.seed)
        profiles, dims = [profile.name for profile in model.profiles], [symbol.name for symbol in shapes.symbols]
        self.labels = records.Labels(profiles, dims, workspace.project)

    def verification_by(
        self,
        cut: CutVerification,
        runner: verification.Runner,
        number: int,
        points: tuple[Point, ...],
        label: str = "",
    ) -> CutVerification:
        """Return the verification of a cut by one runner: onnxruntime or engines.

        `number` is the index of the cut in the model. The file of the worst inputs is named after the model, and
        after `label` or `number`. For onnxruntime and the first cut, it has only the model's name."""
        name = self.name + ("" if runner == "onnxruntime" and not number else f"@{label or number}")
        return replace(
            cut,
            verify_job=replace(
                cut.verify_job.at(points, self.plan.shapes),
                tolerances=verification.tolerances(runner, self.options.tolerance),
                worst=str(self.workspace.project / WORST_INPUTS_FOLDER / f"{name}.safetensors"),
            ),
        )

    def recipe(
        self,
        runner: verification.Runner,
        cut: CutVerification,
        contents: Mapping[str, str],
        versions: Mapping[str, str],
        machine: Mapping[str, str],
    ) -> Recipe:
        """Return the recipe of a comparison. `contents` has SHA-256s: ONNX models by graph, or engines by partition."""
        return recipe_of(
            runner,
            cut.verify_job,
            cut.program_graph,
            contents,
            versions,
            machine,
            quantized=cut.quantized,
        )

    def fetch_blobs(self, cut: CutVerification) -> None:
        """Fetch all blobs of a job into the local store.

        Raises StoreError, InsufficientResources, and SourceError if the weights file or the library of plugins has changed.
        """
        blobs = list(dict.fromkeys(cut.verify_job.blobs()))
        project_blobs = [sha256 for sha256 in blobs if sha256 in self.plan.project_blobs]
        self.workspace.lookups.files.put_blobs(self.plan.model, project_blobs)
        self.workspace.store.fetch(blobs)

    def find(self, cut: CutVerification, recipe: Recipe, machine: Mapping[str, str]) -> FinishedComparison | None:
        """Return the recorded result of a recipe; None without a usable record, or if records are not used."""
        if not self.reads_records:
            return None
        record, report = records.find_record(self.workspace.store, recipe)
        return None if report is None else FinishedComparison(cut, recipe, machine, report, record, recorded=True)

    def find_or_run(
        self,
        cut: CutVerification,
        recipe: Recipe,
        machine: Mapping[str, str],
        run: Callable[[], Report],
    ) -> FinishedComparison:
        """Return the recorded result, or run the comparison. Raises NotCompared or another TrtbuildError."""
        found = self.find(cut, recipe, machine)
        if found is not None:
            return found
        report = run()
        record = records.store_record(self.workspace.store, recipe, report) if self.is_stored(report) else None
        return FinishedComparison(cut, recipe, machine, report, record, recorded=False)

    def is_stored(self, report: Report) -> bool:
        """Whether a report gets a record: it is not wrong, and its inputs do not come from a file."""
        return self.replay is None and report.status != "wrong"
