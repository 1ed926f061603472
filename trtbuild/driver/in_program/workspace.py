"""The workspace of `trtbuild.compile`: a project with one model and without a manifest.

Rules
1. The cache is in the directory `cache_dir`. If `cache_dir` is None, the cache is that of ``trtbuild build`` in the working
   directory. Remotes and trusted keys come from the user's configuration.
2. Durations and logs of steps are stored below ``$XDG_CACHE_HOME`` or ``~/.cache``, or in a temporary directory. They are
   not stored in the working directory, because a program may run in any directory.
3. The caller makes the trace, and passes it to `set_trace`. Only this build uses the trace.
4. A lock file in the working directory is ignored, because it belongs to a project.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.planning.graph import ModelPlan, step_id
from trtbuild.core.planning.model_plan import plan_model
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.outputs import OutputFile
from trtbuild.driver.outputs.packages import INDEX
from trtbuild.driver.project import environment, wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.history import History
from trtbuild.driver.project.outcome import WrittenOutput
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import PackageDamaged, StoreError
from trtbuild.runtime.packages.inside import PackageFolder
from trtbuild.runtime.packages.package import Package


class ProgramWorkspace(Workspace):
    """A workspace of one model. After the build, `files` maps paths in the model's package to files."""

    def __init__(
        self, model: Model, shapes: ShapePlan, cache_dir: str | os.PathLike[str] | None, jobs: int | None
    ) -> None:
        working_directory = Path.cwd()
        self.project = _state_directory()
        self.request = Request(self.project, jobs=jobs)
        self.configuration = wiring.load_configuration(working_directory)
        self.manifests = {}
        self.models = {model.name: model}
        self.shapes = {model.name: shapes}
        self.lock_file = None
        self.facts = environment.gather_facts([model])
        root = None if cache_dir is None else Path(cache_dir).expanduser().absolute()
        self.store = wiring.open_store(working_directory, self.configuration, root)
        self.history = History(self.project / STATE_FOLDER)
        self.digests = wiring.file_digests(self.project)
        self.lookups = wiring.create_lookups(self.project, self.store, self.history, self.digests, force=False)
        self.files: dict[str, OutputFile] = {}

    def set_trace(self, name: str, outputs: dict[str, Output], duration_s: float) -> None:
        """Set the outputs of the model's trace (rule 3). The trace took `duration_s` seconds."""
        step = self.plan(name).steps[step_id(name, "trace")]
        if step.recipe is None:
            raise AssertionError("the recipe of a trace is always known")
        self.lookups.note_run(step.id, Record(step.recipe, outputs, {"duration_s": round(duration_s, 3)}))

    def plan(self, name: str) -> ModelPlan:
        """Return the model's plan, in which no output file counts as up to date."""
        return plan_model(self.models[name], self.shapes[name], self.facts[name], self.lookups, lambda *_: False)

    def write_outputs(self, plan: ModelPlan) -> list[WrittenOutput]:
        """Fetch the blobs of the package and set `files`. Write no file: a program reads its package from the cache."""
        package = plan.package
        if package is None or package.record is None:
            raise AssertionError("outputs are written after the package is built")
        model = replace(plan.model, outputs=(("package", "."),))
        ((_, _, files),) = self.files_of(model, package.record)
        self.store.fetch(file.sha256 for file in files if file.data is None)
        self.files = {file.path: file for file in files}
        return []

    @property
    def package(self) -> StoredPackage:
        """The built package."""
        index = self.files[INDEX]
        data = self.store.get_bytes(index.sha256)
        directory = self.project / "packages" / index.sha256[:32]
        return StoredPackage(
            directory, read_index(data), index.sha256, data, PackageFolder(directory), self.files, self.store
        )


@dataclass(frozen=True)
class StoredPackage(Package):
    """A package whose files are blobs of a store. Its directory `path` has only the kernels that TensorRT-RTX compiles."""

    files: Mapping[str, OutputFile]
    store: Store

    def read(self, names: Iterable[str], *, verify: bool = True) -> Mapping[str, memoryview]:
        """Return name → bytes of files. The store always verifies the bytes. Raises PackageDamaged."""
        return {name: self._read_file(name) for name in dict.fromkeys(names)}

    def _read_file(self, name: str) -> memoryview:
        try:
            file = self.files[name]
            # a copy, because callers need writable memory (`Package.read`)
            return memoryview(bytearray(self.store.get_bytes(file.sha256) if file.data is None else file.data))
        except (KeyError, StoreError) as error:
            raise PackageDamaged(
                f"{name} is no longer in the cache: {error}", hint="compile the module again"
            ) from error


def _state_directory() -> Path:
    """Return the directory for durations and logs (rule 2), or a temporary directory if it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # `expanduser` raises RuntimeError if this user has no home directory.
        directory = Path(base if base.startswith("/") else "~/.cache").expanduser() / "trtbuild" / "programs"
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="trtbuild-"))
