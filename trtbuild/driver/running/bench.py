"""``trtbuild bench``: time a package, and the module from which it was built, at several shapes."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.packages.custom_operators import import_from
from trtbuild.driver.packages.lookup import package_of
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.running.device import PackageOnDevice
from trtbuild.driver.running.documents import Bench, BenchPoint, BenchRun
from trtbuild.driver.running.host_tensors import random_tensor
from trtbuild.driver.running.inputs import check_input_name, parse_shape
from trtbuild.driver.running.originals import OriginalModule
from trtbuild.driver.running.run import requested_target
from trtbuild.driver.running.shapes import SHAPE_KINDS, dim_sizes, profile_by_name, shapes_of
from trtbuild.driver.workers.stopwatch import Budget, Contender, Dropped, LocalContender, time_in_turns
from trtbuild.errors import UsageError
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.stages.trace.job import TraceJob

#: The ways to run the original module: eager PyTorch, and PyTorch's compiler.
ORIGINAL_RUNNERS = ("eager", "torch.compile")
PACKAGE_RUNNER = "trtbuild"


@dataclass(frozen=True)
class MeasuredPoint:
    """Shapes to measure, by input. Their label is, for example, ``photo min`` (a profile and its min) or ``given``."""

    label: str
    shapes: Mapping[str, tuple[int, ...]]


def bench(
    request: Request,
    name: str,
    *,
    shapes: Sequence[str] = (),
    profile: str | None = None,
    originals: Sequence[str] = (),
    device: str | None = None,
    budget: Budget,
    watcher: Watcher | None = None,
    import_operators: bool = False,
    load_plugins: bool = False,
) -> Bench:
    """Measure the package `name` (a directory or a model), and its original module with each of `originals`.

    `originals` are members of `ORIGINAL_RUNNERS`. The package and the runners take turns. The measured shapes are min, opt
    and max of all profiles (or of one `profile`), and the given `shapes` (``x=2x64,mask=2``). `import_operators` and
    `load_plugins` are those of `trtbuild.load`. Raises UsageError and PackageError.
    """
    package = open_package(package_of(request, name))
    index, started = package.index, time.perf_counter()
    points = _measured_points(index, shapes, profile)
    job = _trace_job(request, package, name) if originals else None
    watcher, warnings = watcher or Watcher(), []
    if import_operators:
        import_from(request.project)
    with (
        PackageOnDevice(
            package,
            device=device,
            target=requested_target(request),
            import_operators=import_operators,
            load_plugins=load_plugins,
        ) as on_device,
        contextlib.ExitStack() as stack,
    ):
        loaded = on_device.loaded
        if loaded.is_reference:
            warnings.append(f"on the CPU {index.reference_library} computes the reference program: no engine is timed")
        original_module = None
        if job is not None:
            with watcher.work(f"load the module of {index.model}") as work:
                original_module = stack.enter_context(
                    OriginalModule(Path(request.project).absolute(), job, loaded.device)
                )
                work.failed = original_module.failure_reason is not None
        runs, failures = _time_points(on_device, index, points, original_module, originals, budget, watcher)
    about = original_module.about if original_module is not None else {}
    warnings += [f"{' and '.join(runners)}: {reason}" for reason, runners in failures.items()]
    return Bench(
        package=str(package.path),
        model=index.model,
        device=loaded.device,
        device_name=about.get("device_name") or (processor() if loaded.device == "cpu" else None),
        reference=loaded.is_reference,
        computed_by=index.reference_library if loaded.is_reference else None,
        target=loaded.target.name if loaded.target is not None else None,
        budget=budget,
        duration_s=round(time.perf_counter() - started, 3),
        points=[
            BenchPoint(label=point.label, shapes=point.shapes, dims=dim_sizes(index, point.shapes)) for point in points
        ],
        runs=runs,
        versions={"torch": about["torch"]} if "torch" in about else {},
        warnings=warnings,
    )


def processor() -> str:
    """Return the name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, model_name = line.partition(":")
            if name.strip() == "model name":
                return model_name.strip()
    return platform.processor() or platform.machine()


def _measured_points(index: PackageIndex, texts: Sequence[str], profile: str | None) -> list[MeasuredPoint]:
    """Return the points of the profiles and of `texts`. Equal shapes are one point with several labels."""
    profiles = [profile_by_name(index, profile)] if profile is not None else list(index.profiles)
    labelled_shapes = [
        (f"{entry.name} {kind}", shapes_of(index, {}, entry, kind)) for entry in profiles for kind in SHAPE_KINDS
    ]
    labelled_shapes += [("given", shapes_of(index, _parsed_shapes(index, text))) for text in texts]
    labels: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    by_shapes: dict[tuple[tuple[int, ...], ...], Mapping[str, tuple[int, ...]]] = {}
    for label, shapes in labelled_shapes:
        key = tuple(shapes[entry.name] for entry in index.inputs)
        labels.setdefault(key, []).append(label)
        by_shapes[key] = shapes
    return [MeasuredPoint(_label(names), by_shapes[key]) for key, names in labels.items()]


def _label(labels: Sequence[str]) -> str:
    """Return the labels of a point as one text, such as ``photo min, opt`` for ``photo min`` and ``photo opt``."""
    by_profile: dict[str, list[str]] = {}
    for name in dict.fromkeys(labels):
        profile, _, kind = name.rpartition(" ")
        by_profile.setdefault(profile, []).append(kind)
    return "; ".join(f"{profile} {', '.join(kinds)}".strip() for profile, kinds in by_profile.items())


def _parsed_shapes(index: PackageIndex, text: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for item in text.split(","):
        name, equals, shape = item.partition("=")
        if not equals:
            raise UsageError(f"{text!r} names no input", hint="write --shape x=2x64, or x=2x64,mask=2")
        shapes[check_input_name(index, name.strip())] = parse_shape(shape.strip())
    return shapes


def _time_points(
    on_device: PackageOnDevice,
    index: PackageIndex,
    points: Sequence[MeasuredPoint],
    original_module: OriginalModule | None,
    originals: Sequence[str],
    budget: Budget,
    watcher: Watcher,
) -> tuple[list[BenchRun], dict[str, list[str]]]:
    """Return the latencies of each runner at each point, and reason of a failure → the runners that were dropped."""
    runs: dict[str, list[BenchRun]] = {runner: [] for runner in (PACKAGE_RUNNER, *originals)}
    failures: dict[str, list[str]] = {}
    for number, point in enumerate(points):
        with watcher.work(f"time {point.label}"):
            dropped = [runner for runners in failures.values() for runner in runners]
            contenders: dict[str, Contender] = {PACKAGE_RUNNER: _package_contender(on_device, index, point)}
            if original_module is not None:
                shapes = [point.shapes[entry.name] for entry in index.inputs]
                contenders |= {
                    name: original_module.contender(name, shapes) for name in originals if name not in dropped
                }
            for runner, result in time_in_turns(contenders, budget).items():
                if isinstance(result, Dropped):
                    failures.setdefault(str(result), []).append(runner)
                else:
                    runs[runner].append(BenchRun(runner=runner, point=number, **vars(result)))
    return [run for runner_runs in runs.values() for run in runner_runs], failures


def _package_contender(on_device: PackageOnDevice, index: PackageIndex, point: MeasuredPoint) -> LocalContender:
    arrays = {
        entry.name: on_device.put(random_tensor(entry.dtype, point.shapes[entry.name], seed, entry.range))
        for seed, entry in enumerate(index.inputs)
    }
    return LocalContender(lambda: on_device.run(arrays), on_device.wait)


def _trace_job(request: Request, package: Package, name: str) -> TraceJob:
    """Return the job that creates the original module. Raises UsageError if the project does not have it."""
    workspace = Workspace(replace(request, models=(), targets=()))
    model = workspace.models.get(package.index.model)
    if model is None:
        raise UsageError(
            f"the source of {name!r} is not in this project: there is no model {package.index.model!r} in its manifests",
            hint="leave --eager and --torch-compile out, or name the project with -C PROJECT",
        )
    if model.source.graph.reference != "torch":
        raise UsageError(
            f"the source of model {model.name!r} is not a PyTorch module ({model.source.kind})",
            hint="leave --eager and --torch-compile out",
        )
    return TraceJob(model.source, model.inputs, workspace.shapes[model.name])
