"""A project that a command has opened: the request, the models, the store, and the plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trtbuild import manifest
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.packages.package_files import file_sizes, read_files
from trtbuild.core.planning.graph import stages_until
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.planning.model_plan import Facts, ModelPlan, plan_model
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver import outputs
from trtbuild.driver.project import environment, locked, wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.history import History
from trtbuild.driver.project.locked import LockFile, LockGuard
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.outcome import WrittenOutput
from trtbuild.driver.project.shortage import refuse_small_output_disk
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    ManifestErrors,
    PackageError,
    Problem,
    TrtbuildError,
    UsageError,
)
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore


@dataclass(frozen=True)
class Request:
    """The arguments of a command: the project's directory, the manifests, models and targets, and options."""

    project: Path
    files: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    jobs: int | None = None
    #: After a step has failed, start the steps that do not depend on it, too.
    keep_going: bool = False
    #: Run each step once, even if its result is in a cache.
    force: bool = False
    #: Fail if a step would have to run, or if a result differs from the lock file.
    frozen: bool = False
    #: Ignore the lock file, and use the installed versions.
    upgrade: bool = False
    #: Accept records that differ from the lock file, because a new lock is written.
    relock: bool = False
    #: Use no remote.
    offline: bool = False
    #: The last stage whose steps are run. None means that all stages are run and the outputs are written.
    until: str | None = None
    #: The address of the scheduler whose workers compile and verify engines. None means the address in the configuration.
    workers: str | None = None


class Workspace:
    """A project that a command has opened: its models, its store, its history, and the facts about this machine."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.project = request.project.absolute()
        if not self.project.is_dir():
            raise missing_directory_error(request.project)
        configured = wiring.load_configuration(self.project)
        #: The configuration. With `Request.offline` it has no remotes.
        self.configuration = replace(configured, remotes=()) if request.offline else configured
        project = manifest.load(self.project, request.files or None)
        #: Manifest file → the SHA-256 of its content.
        self.manifests = dict(zip(project.files, project.digests, strict=True))
        self.models = _select_models(project.models, request)
        self.shapes = {name: _derive_shapes(model) for name, model in self.models.items()}
        #: None if the lock file does not exist, or if `Request.upgrade` is set.
        self.lock_file: LockFile | None = None if request.upgrade else locked.read(self.project)
        lock = self.lock_file.lock if self.lock_file is not None else None
        #: Name of a model → the facts about this machine for its plan.
        self.facts: Mapping[str, Facts] = environment.gather_facts(list(self.models.values()), lock)
        self.store: LayeredStore = wiring.open_store(self.project, self.configuration)
        if lock is not None and not request.relock:
            self.store.lock_refusal = LockGuard(lock, frozen=request.frozen).refusal
        self.history = History(self.project / STATE_FOLDER)
        self.digests: FileDigests = wiring.file_digests(self.project)
        self.lookups: StoreLookups = wiring.create_lookups(
            self.project, self.store, self.history, self.digests, force=request.force
        )

    @property
    def workers(self) -> str | None:
        """The address of the scheduler whose workers compile and verify engines; None without a scheduler."""
        return self.request.workers or self.configuration.workers.scheduler

    def plan(self, name: str) -> ModelPlan:
        """The plan for a model with the current files and caches."""
        return plan_model(self.models[name], self.shapes[name], self.facts[name], self.lookups, self.in_place)

    def plan_without_outputs(self, name: str) -> ModelPlan:
        """The plan for a model, as if the files of its outputs did not exist."""
        return plan_model(self.models[name], self.shapes[name], self.facts[name], self.lookups, lambda *_: False)

    def plans(self) -> dict[str, ModelPlan]:
        """Name of a requested model → its plan. Raises ManifestErrors with the problems of all models."""
        plans: dict[str, ModelPlan] = {}
        problems: list[Problem] = []
        for name in self.models:
            try:
                plans[name] = self.plan(name)
            except ManifestErrors as error:
                problems += error.problems
        if problems:
            raise ManifestErrors(problems)
        self.lookups.save_trail()  # it makes the next plan faster
        return plans

    def environment_error(self, plans: Mapping[str, ModelPlan]) -> TrtbuildError | None:
        """The error of `check_environment`, or None."""
        try:
            self.check_environment(plans)
        except TrtbuildError as error:
            return error
        return None

    def check_environment(self, plans: Mapping[str, ModelPlan]) -> None:
        """Raise EnvironmentFault if a step may have to run, but can run neither here nor on a worker of the scheduler."""
        engines: list[tuple[str, Target]] = []
        requested_stages = stages_until(self.request.until)
        for name, plan in plans.items():
            stages = {step.stage for step in plan.steps.values() if step.verdict == "run"} & requested_stages
            if stages - {"package"}:
                environment.check_releases(self.models[name], self.facts[name])
            if stages - {"engine", "package"}:  # all other stages need torch
                environment.check_torch_libraries(name, self.facts[name])
            if "partition" in requested_stages:
                environment.check_parsers(name, self.facts[name], _toolchains_to_partition_for(plan))
                environment.check_locked_parsers(self.facts[name], plan.steps.values())
            targets = {target.name: target for target in self.models[name].targets}
            for step in plan.steps.values():
                if step.stage not in requested_stages:
                    continue
                if step.stage == "engine" and step.verdict in ("run", "unknown") and step.target in targets:
                    engines.append((name, targets[step.target]))
        environment.check_targets(
            self.models, list(dict.fromkeys(engines)), self.facts, on_workers=self.workers is not None
        )

    def files_of(self, model: Model, record: Record) -> list[tuple[str, str, list[outputs.OutputFile]]]:
        """The kind, the path and the files of each output of a model. `record` is the record of its package.

        Raises BlobMissing and EntryCorrupt. Raises UsageError if an output does not support a dtype of the model.
        """
        text = self.lookups.blob(record.outputs["index"].sha256)
        try:
            package = read_files(text)
            return [
                (kind, path, outputs.output_files(kind, path, package, self._record_for(kind, model, record)))
                for kind, path in model.outputs
            ]
        except (PackageError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.lookups.mark_damaged(record.recipe.key)
            raise EntryCorrupt(f"the index of the package of {model.name!r} cannot be used: {error}") from error

    def _record_for(self, kind: str, model: Model, record: Record) -> Record:
        """The record with the files of an output: the record of the package, or that of its ``.pt2`` files.

        Raises BlobMissing.
        """
        if kind != "pt2":
            return record
        exported = self.exported_record(model, record)
        if exported is None:
            raise BlobMissing(f"the .pt2 file of model {model.name!r} has not been made yet")
        return exported

    def exported_record(self, model: Model, package: Record) -> Record | None:
        """The record of the ``.pt2`` files of a package, or None if no record can be used."""
        recipe = outputs.pt2.recipe(package, self.facts[model.name].versions)
        record = self.lookups.record_of(recipe)
        if record is None or not record.recipe.same_as(recipe):
            return None
        return record if all(self.lookups.has_blob(output.sha256) for output in record.outputs.values()) else None

    def write_outputs(self, plan: ModelPlan) -> list[WrittenOutput]:
        """Write the outputs of a finished model that are not up to date.

        Raises InsufficientResources, BlobMissing, EntryCorrupt, StoreUnavailable, SourceError (the weights file or
        the library of plugins has changed), and OSError.
        """
        package = plan.package
        if package is None or package.record is None:
            raise AssertionError("outputs are written after the package is built")
        needed = plan.contents.blobs() if plan.contents is not None else {}
        # `project_blobs` come from the weights file and the library of plugins
        self.lookups.files.put_blobs(plan.model, [sha256 for sha256 in needed if sha256 in plan.project_blobs])
        written = []
        all_files = self.files_of(plan.model, package.record)
        sizes = file_sizes(self.lookups.blob(package.record.outputs["index"].sha256))
        for kind, path, files in all_files:
            changed = outputs.write_output(
                self.project,
                kind,
                path,
                files,
                self.store,
                self.digests.sha256_many,
                self.digests.note_written,
                self.history.recipe(package.id),
                partial(refuse_small_output_disk, self.project, path, plan.model.name, sizes=sizes),
            )
            written.append(WrittenOutput(plan.model.name, kind, path, changed))
        return written

    def in_place(self, model: Model, record: Record) -> bool:
        """Whether all output files of a model exist with the right content. `record` is the record of its package."""
        if not self.lookups.has_blob(record.outputs["index"].sha256):
            return False
        try:
            all_files = self.files_of(model, record)
        except (BlobMissing, EntryCorrupt):  # a damaged index, or a missing .pt2 file, is made again
            return False
        return all(outputs.is_in_place(self.project, files, self.digests.sha256_many) for _, _, files in all_files)


def missing_directory_error(folder: Path) -> UsageError:
    """The error for a ``-C`` option that does not name a directory."""
    if folder.exists():
        hint = f"name the manifest with -f {folder}" if folder.suffix in (".yaml", ".yml") else None
        return UsageError(f"{folder} is a file, and -C names the project's directory", hint=hint)
    return UsageError(f"there is no directory {str(folder)!r}", hint="-C names the project's directory")


def _toolchains_to_partition_for(plan: ModelPlan) -> set[str]:
    """The toolchains of the partition steps that have to run, or may have to run."""
    toolchains: set[str] = set()
    for step in plan.steps.values():
        if step.stage == "partition" and step.verdict == "unknown":
            toolchains |= {target.toolchain for target in plan.model.targets}
        elif isinstance(step.job, PartitionJob) and step.verdict == "run":
            toolchains.add(step.job.toolchain)
    return toolchains


def _select_models(models: Sequence[Model], request: Request) -> dict[str, Model]:
    by_name = {model.name: model for model in models}
    for name in request.models:
        if name not in by_name:
            raise UsageError(f"no model is called {name!r}", hint=_model_hint(name, by_name))
    chosen = {name: by_name[name] for name in (request.models or by_name)}
    if not request.targets:
        return chosen
    target_names = sorted({target.name for model in chosen.values() for target in model.targets})
    for name in request.targets:
        if name not in target_names:
            raise UsageError(f"no target is called {name!r}", hint=suggestion(name, target_names, "targets"))
    return {
        name: _limit_to_targets(model, request.targets)
        for name, model in chosen.items()
        if _has_target(model, request.targets)
    }


def _has_target(model: Model, targets: Sequence[str]) -> bool:
    return any(target.name in targets for target in model.targets)


def _limit_to_targets(model: Model, targets: Sequence[str]) -> Model:
    return replace(model, targets=tuple(target for target in model.targets if target.name in targets))


def _model_hint(name: str, models: Mapping[str, Model]) -> str:
    """The hint for an unknown model name, which may be a manifest, a target, an output, or similar to a model's name."""
    if name.endswith((".yaml", ".yml")):
        return f"name a manifest with -f {name}"
    if any(target.name == name for model in models.values() for target in model.targets):
        return f"it is a target: --target {name}"
    path = name.rstrip("/")
    model_name = next((model.name for model in models.values() for _, output in model.outputs if output == path), None)
    return (
        f"it is an output of model {model_name!r}: name the model" if model_name else suggestion(name, models, "models")
    )


def _derive_shapes(model: Model) -> ShapePlan:
    plan, problems = derive(model.inputs, model.dims, model.profiles)
    if plan is None:
        raise UsageError(
            "; ".join(problem.text for problem in problems), file=model.origin.file, line=model.origin.line
        )
    return plan
