"""Run the ONNX models of a project's conversions with onnxruntime, and write models, inputs and outputs to a folder.

Rules
1. The models are the results of the convert steps of ``trtbuild build --until convert``. Equal models are written once.
2. Each model runs several times with seeded inputs. In one run (a *case*), all dynamic axes have the same size, one of
   `SIZES`. Floats are normally distributed, or multiples of 0.5, so that many are equal. Integers are 0, 1 or 2;
   bools are 0 or 1.
3. A case is left out if onnxruntime fails, for example because a model allows no such sizes. A model is left out if it has
   no case. This also happens if onnxruntime has no kernel for it, or if its weights are not in the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.store.local.local import LocalStore

#: The sizes of dynamic axes.
SIZES = (2, 3, 8)

_TYPES = {"float": "float32", "double": "float64"}

Arrays = Mapping[str, npt.NDArray[Any]]


def record(project: Path, folder: Path) -> int:
    """Write the models and cases of a project. Returns the number of models.

    ``MODEL.onnx`` is a model, and ``MODEL.SIZE.KIND.npz`` has the arrays ``in:NAME`` and ``out:NAME`` of a case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = LocalStore(project / "cache")
    count = 0
    for name, digest in _conversions(project):
        count += record_model(folder, name, store.get_bytes(digest))
    return count


def record_model(folder: Path, name: str, model: bytes) -> bool:
    """Write the model and its cases. Returns False, and writes nothing, if there is no case."""
    cases = list(_cases(model))
    if not cases:
        return False
    (folder / f"{name}.onnx").write_bytes(model)
    for size, kind, inputs, outputs in cases:
        arrays = {f"in:{key}": value for key, value in inputs.items()}
        arrays |= {f"out:{key}": value for key, value in outputs.items()}
        np.savez(folder / f"{name}.{size}.{kind}.npz", **arrays)
    return True


def _conversions(project: Path) -> Iterator[tuple[str, str]]:
    """Build the project up to its conversions. Yields the name of each ONNX model, and the SHA-256 of its bytes."""
    environment = {**os.environ, "TRTBUILD_CACHE_DIR": str(project / "cache")}
    command = [sys.executable, "-m", "trtbuild", "build", "--until", "convert", "--keep-going", "--json"]
    process = subprocess.run(command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    digests = set()
    for step in json.loads(process.stdout)["steps"]:
        if step["stage"] == "convert" and "onnx" in (step["outputs"] or {}):
            digest = step["outputs"]["onnx"]["sha256"]
            if digest not in digests:
                digests.add(digest)
                yield step["id"].replace("/convert/", ".").replace("/", "-"), digest


def _cases(model: bytes) -> Iterator[tuple[int, str, Arrays, Arrays]]:
    """Yield the size, the kind of values, the inputs and the outputs of each case."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime's errors have no common class
        return
    names = [output.name for output in session.get_outputs()]
    for size in SIZES:
        for number, kind in enumerate(("normal", "halves")):
            inputs = _inputs(session.get_inputs(), size, kind, seed=number)
            try:
                outputs = session.run(names, dict(inputs))
            except Exception:
                continue
            yield size, kind, inputs, dict(zip(names, outputs, strict=True))


def _inputs(entries: Any, size: int, kind: str, *, seed: int) -> Arrays:
    generator = np.random.default_rng([size, seed])
    inputs = {}
    for entry in entries:
        shape = [axis if isinstance(axis, int) else size for axis in entry.shape]
        name = entry.type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype(_TYPES.get(name, name))
        if dtype.kind == "f":
            values = generator.standard_normal(shape)
            inputs[entry.name] = (values if kind == "normal" else np.round(values * 4) / 2).astype(dtype)
        else:
            inputs[entry.name] = generator.integers(0, 2 if dtype.kind == "b" else 3, shape).astype(dtype)
    return inputs
