"""Verify the engines of a project on one GPU and on the workers of a Dask scheduler, and compare the results.

1. The project's cache may have traces by another version of torch than the installed one. A Python without torch writes
   the packages from these traces, and records the traces in the lock file (``trtbuild lock``). So the Python with torch
   does not trace again.
2. One process verifies on one GPU. Then ``verify --workers`` verifies on one worker for each GPU. Both run all comparisons.
   The results must have the same keys, because GPU, driver and versions are the same. At the end, a second
   ``verify --workers`` must find these results.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.gpu.several_gpus.processes import Machine
from trtbuild.core.model.verification_messages import worst_error
from trtbuild.core.model.verified import CutEntry
from trtbuild.core.values.codec import decode

_NEEDED = ("torch", "onnx", "onnxruntime", "distributed")


def rows(machine: Machine, project: Path, models: Sequence[str], gpus: int) -> Iterator[Row]:
    """Verify the models of `project`. The project's cache has the engines."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing or not (project / "cache").is_dir():
        found = (
            f"{', '.join(missing)} not installed"
            if missing
            else f"{project} was not built: measure the part `workers`, too"
        )
        yield Check("the engines are verified on the workers", False, found)
        return
    bare = without_torch(machine)
    packages = bare.trtbuild(project, "packages", "build", "--keep-going", *models)
    built = sorted({output["model"] for output in packages["outputs"] if output["kind"] == "package"})
    errors = "; ".join(str(error["text"])[:300] for error in packages["errors"])
    yield Check("the packages of the workers' engines are written", bool(built), errors or ", ".join(built))
    locked = bare.trtbuild(project, "lock", "lock", *built)
    yield Check("the project is locked", bool(locked.get("ok")), str(locked.get("errors") or "locked")[:300])
    here = machine.trtbuild(
        project, "verify-here", "verify", *built, "--force", variables={"CUDA_VISIBLE_DEVICES": "0"}
    )
    yield Measurement("verify on one GPU, without workers", Value("wall time", here["duration_s"], "s"))
    with machine.scheduler(project, "verify-scheduler") as scheduler:
        address = scheduler.wait_for_scheduler()
        with machine.worker(project, "verify-worker", address) as worker:
            worker.wait_for("(at the same time)")
            command = ["verify", *built, "--force", "--workers", address]
            document = machine.trtbuild(project, "verify-on-workers", *command)
            again = machine.trtbuild(project, "verify-again", "verify", *built, "--workers", address)
    yield Measurement("verify --workers", Value("wall time", document["duration_s"], "s"))
    on_workers, on_one = (Value("wall time", round(each["duration_s"], 1), "s") for each in (document, here))
    yield Ratio(f"verify on {gpus} Dask workers, compared with one GPU", on_workers, on_one)
    keys_here = {key for key, _ in _engine_cuts(here)}
    yield from _verdicts(document, here)
    keys = {key for key, _ in _engine_cuts(document)}
    found = f"{len(keys & keys_here)} keys are the same, {len(keys ^ keys_here)} differ"
    yield Check("the keys are those of a verification on one GPU", bool(keys) and keys == keys_here, found)
    names = {str(cut["worker"]) for _, cut in _engine_cuts(document) if cut.get("worker")}
    yield Check("each GPU has a worker that compared engines", len(names) == gpus, ", ".join(sorted(names)))
    right = {key for key, cut in _engine_cuts(document) if cut["status"] != "wrong"}
    hits = {key for key, cut in _engine_cuts(again) if cut["verdict"] == "hit"}
    yield Check("a second verification finds the results", right <= hits, f"{len(hits)} of {len(right)} are hits")


def _engine_cuts(document: Any) -> list[tuple[str, Any]]:
    """Return the key and the entry (`CutEntry`) of each comparison of a model's engines with PyTorch."""
    return [(cut["key"], cut) for model in document["models"] for cut in model["cuts"] if cut["by"] == "engine"]


def _verdicts(document: Any, here: Any) -> Iterator[Row]:
    """Yield a row for each model, and print errors and warnings.

    Both documents must have equally many comparisons of a model's engines. An entry of `cuts` whose `by` is "engine" is
    such a comparison.
    """
    for model, model_here in zip(document["models"], here["models"], strict=True):
        cuts, cuts_here = ([cut for cut in each["cuts"] if cut["by"] == "engine"] for each in (model, model_here))
        texts = [_text(decode(CutEntry, cut)) for cut in cuts]
        texts += [f"{entry['target']} not run: {entry['reason'][:300]}" for entry in model["not_run"]]
        is_met = model["ok"] and len(cuts) == len(cuts_here)
        yield Check(f"{model['model']}: verify on a worker", is_met, "; ".join(texts) or model["status"])
    for error in document["errors"]:
        print(f"    {error['text'][:1000]}")
    for warning in document["warnings"]:
        print(f"    warning: {warning[:300]}")


def _text(cut: CutEntry) -> str:
    error, tolerance = worst_error(cut)
    return f"{cut.status}, worst {error:.1e} of {tolerance:.0e}, by {cut.worker or cut.verdict}"


def without_torch(machine: Machine) -> Machine:
    """Return the machine with a Python that does not find torch. It finds all other packages by links in a folder."""
    folder = machine.work / "site-packages-without-torch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for place in sys.path:
        has_packages = Path(place).name in ("site-packages", "dist-packages") or (Path(place) / "torch").is_dir()
        if not has_packages or not Path(place).is_dir():
            continue
        for entry in Path(place).iterdir():
            is_torch = entry.name == "torch" or entry.name.startswith("torch-")
            if not is_torch and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    inherited = os.environ.get("PYTHONPATH", "")
    others = [place for place in inherited.split(os.pathsep) if place and not (Path(place) / "torch").exists()]
    path = os.pathsep.join([*others, str(folder)])
    return dataclasses.replace(machine, python=(sys.executable, "-S"), variables={"PYTHONPATH": path})
