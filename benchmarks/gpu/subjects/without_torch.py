"""Load and run the examples' packages with a Python that has no torch.

This process writes inputs and eager PyTorch's outputs to files. The other Python runs
``python -m benchmarks.gpu.subjects.without_torch FOLDER``. This command runs each package, and compares the outputs with
those of eager PyTorch. A package with a Torch partition must be rejected with a message that names torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Row


def rows(host: Any) -> Iterator[Row]:
    import numpy as np
    import torch

    from benchmarks.gpu.cases import NoEagerModel, cases, output_tensors
    from benchmarks.gpu.host import tolerance

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    folder = host.work / "without-torch"
    folder.mkdir(parents=True, exist_ok=True)
    jobs: list[dict[str, Any]] = []
    for case in cases(host.examples):
        try:
            eager = case.eager()
        except NoEagerModel:
            continue
        for number, point in enumerate(case.points(host.points)):
            args, kwargs = case.inputs(point)
            with torch.no_grad():
                expected = output_tensors(eager(*args, **kwargs))
            arrays = {f"arg{index}": value.cpu().numpy() for index, value in enumerate(args)}
            arrays |= {f"kwarg.{name}": value.cpu().numpy() for name, value in kwargs.items()}
            arrays |= {f"out{index}": value.cpu().numpy() for index, value in enumerate(expected)}
            np.savez(folder / f"{case.name}.{number}.npz", **arrays)
            jobs.append(
                {
                    "model": case.name,
                    "package": str(case.package.absolute()),
                    "file": f"{case.name}.{number}.npz",
                    "where": case.describe(point),
                    "tolerance": tolerance(case.model.precision),
                }
            )
    (folder / "jobs.json").write_text(json.dumps(jobs))
    torch.cuda.empty_cache()
    process = host.python(folder, ["-m", "benchmarks.gpu.subjects.without_torch", str(folder)], without_torch=True)
    if process.returncode:
        raise RuntimeError(process.stderr[-3000:])
    for entry in json.loads(process.stdout):
        yield Check(f"{entry['model']}: without torch", entry["ok"], entry["text"])


def _run(folder: Path) -> list[dict[str, Any]]:
    """Run all jobs, and return a result for each model. Raises AssertionError if torch was imported."""
    import trtbuild

    jobs = json.loads((folder / "jobs.json").read_text())
    results = []
    for model in dict.fromkeys(job["model"] for job in jobs):
        model_jobs = [job for job in jobs if job["model"] == model]
        try:
            loaded = trtbuild.load(model_jobs[0]["package"])
            errors = [(_error_of_job(loaded.module(), folder / job["file"]), job["where"]) for job in model_jobs]
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            names_torch = type(error).__module__ == "trtbuild.errors" and "torch" in text.lower()
            results.append(
                {"model": model, "ok": names_torch and _has_torch_part(model_jobs[0]["package"]), "text": text[:400]}
            )
            continue
        worst, where = max(errors)
        text = f"worst {worst:.1e} at {where}; {len(errors)} points"
        results.append({"model": model, "ok": worst <= model_jobs[0]["tolerance"], "text": text})
    if "torch" in sys.modules:
        raise AssertionError("torch was imported")
    return results


def _error_of_job(module: Any, file: Path) -> float:
    """Run a module with the inputs in `file`, and return its largest error (infinite for a wrong number of outputs)."""
    import numpy as np

    from trtbuild.runtime.memory.choosing import choose_memory

    memory = choose_memory(0)
    stored = np.load(file)
    stream = memory.stream()

    def upload(name: str) -> Any:
        array = np.ascontiguousarray(stored[name])
        return memory.upload(array, str(array.dtype), stream)

    arg_count = sum(name.startswith("arg") for name in stored.files)
    args = [upload(f"arg{index}") for index in range(arg_count)]
    kwargs = {name.removeprefix("kwarg."): upload(name) for name in stored.files if name.startswith("kwarg.")}
    outputs = list(_leaves(module(*args, **kwargs)))
    output_count = sum(name.startswith("out") for name in stored.files)
    expected = [stored[f"out{index}"] for index in range(output_count)]
    if len(outputs) != len(expected):
        return float("inf")
    return max(relative_error(output.numpy(), value) for output, value in zip(outputs, expected, strict=True))


def relative_error(actual: Any, expected: Any) -> float:
    """Return max|actual - expected| / max|expected|.

    The result is infinite if shapes or dtypes differ, or if `actual` has values that are not finite. It is also infinite if
    all values of `expected` are 0, and those of `actual` are not.
    """
    import numpy as np

    if actual.shape != expected.shape or actual.dtype != expected.dtype or not np.isfinite(actual).all():
        return float("inf")
    largest = float(abs(expected.astype("float64")).max())
    difference = float(abs(actual.astype("float64") - expected.astype("float64")).max())
    if largest:
        return difference / largest
    return 0.0 if difference == 0 else float("inf")


def _leaves(value: Any) -> Iterator[Any]:
    if hasattr(value, "__dlpack__"):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)
    elif hasattr(value, "__iter__"):
        for member in value:
            yield from _leaves(member)


def _has_torch_part(package: str) -> bool:
    index = json.loads((Path(package) / "index.json").read_text())
    parts = [part for target in index["targets"].values() for part in target["partitions"]["partitions"]]
    return any(part["kind"] == "torch" for part in parts)


if __name__ == "__main__":
    print(json.dumps(_run(Path(sys.argv[1]))))
