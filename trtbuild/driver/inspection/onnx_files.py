"""Write the ONNX models of engines, with their weights, as files for trtexec, Netron and onnxruntime."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.network_document import is_document
from trtbuild.driver.answers.subjects import Subject
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import BlobMissing, EnvironmentFault, TrtbuildError, UsageError


def write_onnx(request: Request, index: PackageIndex, subject: Subject, folder: str) -> dict[tuple[str, str], str]:
    """Write ``<folder>/<target>/<partition>.onnx`` for each engine.

    Return (target, partition) → path relative to the project. Raises

    * UsageError if the recipe of an engine is not in the cache, if the engine was compiled from a TensorRT network, or if a
      file cannot be written
    * BlobMissing or EntryCorrupt if a model or weight is missing or damaged
    * EnvironmentFault if onnx is not installed
    * TrtbuildError if a model is too large for one ONNX file.
    """
    try:
        from trtbuild.stages.convert.weights import materialize
        from trtbuild.toolchain.compiling.preparing import prepare_model
    except ImportError as error:
        raise EnvironmentFault(
            f"writing ONNX models needs {error.name}, which is not installed", hint="pip install onnx numpy"
        ) from None
    from trtbuild.toolchain.libraries.releases import release

    project = Path(request.project).absolute()
    configuration = wiring.load_configuration(project)
    store = wiring.open_store(project, replace(configuration, remotes=()) if request.offline else configuration)
    paths = {}
    for target, entry in index.targets.items():
        for partition in entry.engines:
            parts = _recipe_parts(subject, target, partition)
            digests = [str(parts["onnx"]), *(str(weight["sha256"]) for weight in parts["weights"].values())]
            try:
                store.fetch(digests)
                model, *weight_bytes = (store.get_bytes(sha256) for sha256 in digests)
            except BlobMissing as error:
                raise BlobMissing(
                    f"the ONNX model of {partition}@{target}, or a weight of it, is not in the cache: {error.text}",
                    hint="run `trtbuild build` with the cache that the package was built with",
                ) from None
            if is_document(model):
                raise UsageError(
                    f"{partition}@{target} was compiled from a TensorRT network, so it has no ONNX model",
                    hint="leave --onnx out",
                )
            path = f"{folder}/{target}/{partition}.onnx"
            try:
                weights = dict(zip(parts["weights"], weight_bytes, strict=True))
                data = materialize(*prepare_model(model, weights, release(*parts["toolchain"])))
            except ValueError as error:
                raise TrtbuildError(f"{partition}@{target} does not fit into one ONNX file: {error}") from error
            _write_if_changed(project / path, data)
            paths[target, partition] = path
    return paths


def _recipe_parts(subject: Subject, target: str, partition: str) -> dict[str, Any]:
    recipe = subject.recipes.get(f"engine/{partition}@{target}")
    if recipe is None:
        raise UsageError(
            f"the ONNX model of {partition}@{target} is not in the cache of this project",
            hint="inspect the package where it was built, or set TRTBUILD_CACHE_DIR to that cache",
        )
    return dict(recipe.parts)


def _write_if_changed(path: Path, data: bytes) -> None:
    if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, durable=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
