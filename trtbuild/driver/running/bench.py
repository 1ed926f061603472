"""``trtbuild bench``: latencies of a package by shape, and beside them those of the module that it came from."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild.core.package_index import PackageIndex
from trtbuild.driver import wiring
from trtbuild.driver.packages_here import package_of
from trtbuild.driver.running.device import OnDevice
from trtbuild.driver.running.host_tensors import made_up
from trtbuild.driver.running.inputs import check_name, parse_shape
from trtbuild.driver.running.run import one_target
from trtbuild.driver.running.shapes import WHICH, described, profile_named, shapes_of
from trtbuild.driver.running.stopwatch import Budget, measure
from trtbuild.driver.workers import WorkerPool
from trtbuild.driver.workspace import Request, Workspace
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.runtime.package import Package, open_package
from trtbuild.stages.trace.job import TraceJob

Document = dict[str, Any]

#: The module that a package came from, as it is and compiled by PyTorch itself.
ORIGINALS = ("eager", "torch.compile")
OURS = "trtbuild"


@dataclass(frozen=True)
class Point:
    """Shapes by input name, and what they are: ``photo min``, or ``given``."""

    label: str
    shapes: Mapping[str, tuple[int, ...]]


def bench(
    request: Request,
    said: str,
    *,
    shapes: Sequence[str] = (),
    profile: str | None = None,
    originals: Sequence[str] = (),
    device: str | None = None,
    budget: Budget,
) -> Document:
    """``trtbuild.bench/1``: the package at min, opt and max of its profiles (or of one) and at given `shapes`
    (``x=2x64,mask=2``), and each of `originals` (members of `ORIGINALS`) at the same.

    Raises UsageError and PackageError.
    """
    package = open_package(package_of(request, said))
    index, started = package.index, time.perf_counter()
    points = _points(index, shapes, profile)
    job = _job(request, package, said) if originals else None
    warnings = []
    with OnDevice(package, device=device, target=one_target(request)) as on_device:
        loaded = on_device.loaded
        if loaded.is_reference:
            warnings.append(f"on the CPU {index.computed_by} computes the reference program: no engine is timed")
        runs = [_run(on_device, index, number, point, budget) for number, point in enumerate(points)]
    reply: Document = {}
    if job is not None:
        try:
            reply = _originals(request, job, points, index, originals, loaded.device, budget)
        except TrtbuildError as error:
            warnings.append(f"{' and '.join(originals)}: {error.text}")
        runs += reply.get("runs", [])
        warnings += [f"{runner}: {why}" for runner, why in reply.get("refused", {}).items()]
    return {
        "schema": "trtbuild.bench/1",
        "ok": True,
        "package": str(package.path),
        "model": index.model,
        "device": loaded.device,
        "device_name": reply.get("device_name") or (processor() if loaded.device == "cpu" else None),
        "reference": loaded.is_reference,
        "computed_by": index.computed_by if loaded.is_reference else None,
        "target": loaded.target.name if loaded.target is not None else None,
        "budget": asdict(budget),
        "duration_s": round(time.perf_counter() - started, 3),
        "points": [
            {
                "label": point.label,
                "shapes": {name: list(shape) for name, shape in point.shapes.items()},
                "dims": described(index, point.shapes),
            }
            for point in points
        ],
        "runs": runs,
        "versions": {"torch": reply["torch"]} if "torch" in reply else {},
        "warnings": warnings,
    }


def processor() -> str:
    """What this machine's CPU is called."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _points(index: PackageIndex, said: Sequence[str], profile: str | None) -> list[Point]:
    """Equal shapes are one point, by all of its names."""
    chosen = [profile_named(index, profile)] if profile is not None else list(index.profiles)
    found = [(f"{one.name} {which}", shapes_of(index, {}, one, which)) for one in chosen for which in WHICH]
    found += [("given", shapes_of(index, _given(index, text))) for text in said]
    labels: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    by_shapes: dict[tuple[tuple[int, ...], ...], Mapping[str, tuple[int, ...]]] = {}
    for label, shapes in found:
        key = tuple(shapes[entry.name] for entry in index.inputs)
        labels.setdefault(key, []).append(label)
        by_shapes[key] = shapes
    return [Point(_label(names), by_shapes[key]) for key, names in labels.items()]


def _label(names: Sequence[str]) -> str:
    """``photo min, opt`` for two names of one profile."""
    told: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        profile, _, which = name.rpartition(" ")
        told.setdefault(profile, []).append(which)
    return "; ".join(f"{profile} {', '.join(whichs)}".strip() for profile, whichs in told.items())


def _given(index: PackageIndex, text: str) -> dict[str, tuple[int, ...]]:
    found = {}
    for item in text.split(","):
        name, equals, shape = item.partition("=")
        if not equals:
            raise UsageError(f"{text!r} names no input", hint="write --shape x=2x64, or x=2x64,mask=2")
        found[check_name(index, name.strip())] = parse_shape(shape.strip())
    return found


def _run(on_device: OnDevice, index: PackageIndex, number: int, point: Point, budget: Budget) -> Document:
    arrays = {
        entry.name: on_device.put(made_up(entry.dtype, point.shapes[entry.name], seed))
        for seed, entry in enumerate(index.inputs)
    }
    return {"runner": OURS, "point": number, **measure(lambda: on_device.run(arrays), on_device.wait, budget)}


def _job(request: Request, package: Package, said: str) -> TraceJob:
    """What the original's process is told. Raises UsageError where the model is none of this project's."""
    workspace = Workspace(replace(request, models=(), targets=()))
    model = workspace.models.get(package.index.model)
    if model is None:
        raise UsageError(
            f"the source of {said!r} is not in this project: there is no model {package.index.model!r} in its manifests",
            hint="leave --eager and --torch-compile out, or say -C PROJECT",
        )
    if model.source.form != "program":
        raise UsageError(
            f"the source of model {model.name!r} is no PyTorch module ({model.source.kind})",
            hint="leave --eager and --torch-compile out",
        )
    return TraceJob(model.source, model.inputs, workspace.shapes[model.name])


def _originals(
    request: Request,
    job: TraceJob,
    points: Sequence[Point],
    index: PackageIndex,
    originals: Sequence[str],
    device: str,
    budget: Budget,
) -> Document:
    project = Path(request.project).absolute()
    pool = WorkerPool(wiring.store_root(project), project)
    try:
        return pool.call(
            "original",
            {
                "trace": job.to_json(),
                "device": device,
                "runners": list(originals),
                "points": [[list(point.shapes[entry.name]) for entry in index.inputs] for point in points],
                "budget": asdict(budget),
            },
        )
    finally:
        pool.close(kill=True)
