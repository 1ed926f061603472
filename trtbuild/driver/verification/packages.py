"""``trtbuild verify PACKAGE``: compare a package's engines, on this machine's GPU, with the programs in the package.

Rules
1. Only the package is needed: no project, no cache, no source. It must have been built with ``reference: true``, so that
   it has the programs of its partitions.
2. PyTorch computes the expected results with these programs. They are parts of the lowered program, which the build has
   compared with the model, unless the model was too large for this. For a model that came as ONNX, onnxruntime computes
   the expected results on the CPU.
3. Every package has an entry or an error. An error of one package does not stop the verification of the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model import verification
from trtbuild.core.model.comparisons import Status
from trtbuild.core.model.quantized_types import is_rounded_weight
from trtbuild.core.model.spec import Input, Model, Origin, Profile, Source
from trtbuild.core.model.state import StateInputs
from trtbuild.core.model.verification import Point
from trtbuild.core.model.verified import CutEntry, NotRun, PackageEntry
from trtbuild.core.packages.package_index import PackedTarget
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import Verification
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.configuration.builder import time_and_builder
from trtbuild.driver.gpu_comparisons import engines as engines_here
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.packages.custom_operators import require_operators
from trtbuild.driver.packages.custom_plugins import require_permission
from trtbuild.driver.verification import records
from trtbuild.driver.verification.document import (
    ADVICE_FOR_PACKAGE,
    Options,
    internal_error,
    verification_document,
)
from trtbuild.driver.verification.replay import replayed_point
from trtbuild.errors import NoFittingTarget, NotCompared, TrtbuildError, UsageError
from trtbuild.runtime.packages.choice import ADD_REFERENCE_HINT
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.toolchain.libraries import table

#: The first bytes of a PyTorch program.
_ZIP_START = b"PK\x03\x04"


def verify_packages(paths: Sequence[Path], targets: Sequence[str], options: Options, watcher: Watcher) -> Verification:
    """Verify packages, and return the document ``trtbuild.verify/1``.

    `ok` is false if a package has an error, if one of its results is not `right`, if none of its engines could run, or if
    ``--max-error`` rejects its model. Each entry of `errors` names its `package`. If every package fails because of
    the arguments or of this machine, the first error is raised.
    """
    started = time.monotonic()
    engines_here.usable_gpus(options.device)  # an unknown device is an error before any work
    models: list[PackageEntry] = []
    errors_by_path: dict[Path, TrtbuildError] = {}
    for path in paths:
        try:
            package_verification = _PackageVerification(open_package(path), options)
            with watcher.work(f"verify {path}") as work:
                models.append(package_verification.verify(targets))
                work.failed = not models[-1].ok
        except TrtbuildError as error:
            errors_by_path[path] = error
        except Exception as error:
            errors_by_path[path] = internal_error(error)
    if not models and all(error.exit_code == UsageError.exit_code for error in errors_by_path.values()):
        raise next(iter(errors_by_path.values()))
    errors = [report.describe(error, package=str(path)) for path, error in errors_by_path.items()]
    return verification_document(options, started, models, errors)


class _PackageVerification:
    """The verification of one package. Each finished comparison becomes an item of `cuts` in the package's entry."""

    def __init__(self, package: Package, options: Options) -> None:
        index = package.index
        if not index.reference:
            raise NoFittingTarget(
                f"the package of {index.model!r} has no reference program to compare its engines with",
                hint=ADD_REFERENCE_HINT,
            )
        self._package = package
        self._options = options
        self._shapes = engines_here.shapes_of(index)
        self._model = _model(package)
        self._replay = None if options.replay is None else Path(options.replay).absolute()
        if self._replay is not None:
            self._points: tuple[Point, ...] = (replayed_point(self._replay, self._model, self._shapes),)
        else:
            self._points = verification.points_of_model(
                self._model, self._shapes, count=options.points, seed=options.seed
            )
        dims = [dim.name for dim in index.dims]
        self._labels = records.Labels([profile.name for profile in index.profiles], dims, package.path)

    def verify(self, targets: Sequence[str]) -> PackageEntry:
        """Verify the package, and return its entry. Without ``--replay``, write or remove the provenance file."""
        index = self._package.index
        cuts: list[CutEntry] = []
        not_run: list[NotRun] = []
        target_names = targets or list(index.targets)
        for name, gpu in engines_here.gpus_for_targets(self._package, target_names, self._options.device):
            if isinstance(gpu, str):
                not_run.append(NotRun(target=name, reason=gpu))
                continue
            reason = self._reason_without_onnx(name) or engines_here.reason_without_torch()
            if reason is not None:
                not_run.append(NotRun(target=name, reason=reason))
                continue
            try:
                cuts.append(self._entry(index.targets[name], gpu))
            except NotCompared as error:
                not_run.append(NotRun(target=name, reason=str(error)))
        cuts = records.add_tf32_hints(cuts, None)
        statuses = {cut.status for cut in cuts}
        status: Status = "wrong" if "wrong" in statuses else "right" if statuses == {"right"} else "unchecked"
        if status == "wrong" and self._replay is None:
            provenance_file.remove(self._package)
        elif cuts and self._replay is None:
            provenance_file.add(self._package, cuts)
        exceeds = self._options.why_rejected(cuts, ADVICE_FOR_PACKAGE, quantized=bool(index.quantized))
        return PackageEntry(
            model=index.model,
            ok=status == "right" and exceeds is None,
            status=status,
            precision=index.precision,
            cuts=cuts,
            not_run=not_run,
            exceeds=exceeds,
        )

    def _reason_without_onnx(self, target: str) -> str | None:
        """Return the reason why a target's ONNX programs cannot run here; None if they can, or if they do not exist."""
        if _PackageBlobs(self._package, self._package.index.targets[target]).has_onnx:
            missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
            if missing:
                verb = "is" if len(missing) == 1 else "are"
                return (
                    f"the model is an ONNX model, and {' and '.join(missing)} {verb} not installed "
                    "(pip install 'trtbuild[verify]')"
                )
        return None

    def _entry(self, target: PackedTarget, gpu: engines_here.TargetGpu) -> CutEntry:
        blobs = _PackageBlobs(self._package, target)
        index = self._package.index
        require_permission(index, load_plugins=self._options.load_plugins)
        require_operators(index.operators, index.model, import_modules=self._options.import_operators)
        result = engines_here.compare(self._job(target, blobs), self._package, gpu, self._shapes, blobs.read)
        return records.comparison_entry(
            result,
            self._labels,
            targets=[target.name],
            toolchain=f"{target.toolchain} {target.version}",
            plans={target.name: provenance_file.plans_of(self._package, target.name)},
            machine=engines_here.machine_facts(gpu, table.host_platform()),
            provenance=time_and_builder(),
        )

    def _job(self, target: PackedTarget, blobs: _PackageBlobs) -> VerifyJob:
        index = self._package.index
        first_states = [blobs.weight(entry.slot) for entry in index.state]
        state = StateInputs.of(index.state, [(first.dtype, first.shape) for first in first_states])
        slots = range(max(index.weights.keys() - {entry.slot for entry in index.state}, default=-1) + 1)
        programs = {graph: self._package.index.files[path].sha256 for graph, path in target.programs.items()}
        return VerifyJob(
            program="",
            modules="",
            partitions=blobs.partitions,
            programs={} if blobs.has_onnx else programs,
            onnx=programs if blobs.has_onnx else {},
            origins={},
            weights=tuple(blobs.weight(slot) for slot in slots),
            inputs=(*((entry.name, entry.dtype) for entry in index.inputs), *state.inputs),
            tolerances=verification.tolerances("engine", self._options.tolerance),
            ranges={
                **{entry.name: entry.range for entry in index.inputs if entry.range is not None},
                **state.ranges,
            },
            by_onnx=blobs.has_onnx,
            worst=None,
            replay=None if self._replay is None else str(self._replay),
            has_rounded_weights=any(is_rounded_weight(weight.name) for weight in index.weights.values()),
            operators=index.operators,
            first_state=tuple(first_states),
        ).at(self._points, self._shapes)


class _PackageBlobs:
    """The blobs that a verification reads: files of the package, by SHA-256, and the document of a target's partitions.

    The document is a part of the index and not a file, so jobs name it `partitions` instead of a SHA-256."""

    partitions = "partitions"

    def __init__(self, package: Package, target: PackedTarget) -> None:
        self._package = package
        self._document = target.partitions.to_bytes()
        self._paths = {entry.sha256: path for path, entry in package.index.files.items()}
        #: Whether the model came as ONNX. The bytes decide, because older packages name all programs ``.pt2``.
        self.has_onnx = not all(
            bytes(package.read([path])[path][: len(_ZIP_START)]) == _ZIP_START for path in target.programs.values()
        )

    def read(self, sha256: str) -> bytes:
        if sha256 == self.partitions:
            return self._document
        path = self._paths[sha256]
        return bytes(self._package.read([path])[path])

    def weight(self, slot: int) -> Weight:
        """Return the weight with the number `slot`; an empty weight if no partition reads it."""
        packed = self._package.index.weights.get(slot)
        if packed is None:
            return Weight("float32", (), "")
        return Weight(packed.dtype, packed.shape, self._package.index.files[packed.path].sha256)


def _model(package: Package) -> Model:
    """Return a model with those fields that determine the points of the comparison."""
    index = package.index
    inputs = tuple(Input(entry.name, entry.dtype, entry.keyword, entry.range) for entry in index.inputs)
    profiles = tuple(
        Profile(profile.name, tuple(zip((entry.name for entry in inputs), profile.shapes, strict=True)))
        for profile in index.profiles
    )
    unknown_source = Source("module", index.model)
    model = Model(index.model, unknown_source, inputs, profiles, (), Origin(str(package.path), 0))
    return replace(model, precision=index.precision)  # type: ignore[arg-type]
