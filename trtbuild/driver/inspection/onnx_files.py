"""The ONNX models that engines were compiled from, with their weights, as files: for trtexec, Netron and onnxruntime."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.core.partition.network_document import is_document
from trtbuild.driver.answers.subjects import Subject
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import BlobMissing, EnvironmentFault, TrtbuildError, UsageError


def write_onnx(request: Request, index: Mapping[str, Any], subject: Subject, folder: str) -> dict[tuple[str, str], str]:
    """Write ``<folder>/<target>/<partition>.onnx`` for each engine. (target, partition) → path relative to the project.

    Raises UsageError where the recipe of an engine is not in the cache, or it came from a TensorRT network; BlobMissing for
    a model or weight that is not there; EnvironmentFault without onnx.
    """
    try:
        from trtbuild.stages.convert.weights import materialize
        from trtbuild.toolchain.compiling.preparing import prepared
    except ImportError as error:
        raise EnvironmentFault(
            f"ONNX models are put together by {error.name}, which is not installed", hint="pip install onnx numpy"
        ) from None
    from trtbuild.store.local.publication import copy_atomically
    from trtbuild.toolchain.libraries.releases import release

    project = Path(request.project).absolute()
    configured = wiring.configuration(project)
    store = wiring.open_store(project, replace(configured, remotes=()) if request.offline else configured)
    written = {}
    for target, entry in index["targets"].items():
        for partition in entry["engines"]:
            parts = _recipe(subject, target, partition)
            wanted = [str(parts["onnx"]), *(str(weight["sha256"]) for weight in parts["weights"].values())]
            try:
                store.bring(wanted)
                model, *values = (store.get_bytes(sha256) for sha256 in wanted)
            except BlobMissing as error:
                raise BlobMissing(
                    f"the ONNX model of {partition}@{target}, or a weight of it, is not in the cache: {error.text}",
                    hint="trtbuild build, with the cache that the package was built with",
                ) from None
            if is_document(model):
                raise UsageError(
                    f"{partition}@{target} was compiled from a TensorRT network, and there is no ONNX model of it",
                    hint="leave --onnx out",
                )
            path = f"{folder}/{target}/{partition}.onnx"
            try:
                given = dict(zip(parts["weights"], values, strict=True))
                data = materialize(*prepared(model, given, release(*parts["toolchain"])))
            except ValueError as error:
                raise TrtbuildError(f"{partition}@{target} does not fit into one ONNX file: {error}") from error
            _write(project / path, data, copy_atomically)
            written[target, partition] = path
    return written


def _recipe(subject: Subject, target: str, partition: str) -> dict[str, Any]:
    recipe = subject.recipes.get(f"engine/{partition}@{target}")
    if recipe is None:
        raise UsageError(
            f"what {partition}@{target} was compiled from is not in the cache of this project",
            hint="inspect it where it was built, or with TRTBUILD_CACHE_DIR set to that cache",
        )
    return dict(recipe.parts)


def _write(path: Path, data: bytes, copy: Any) -> None:
    if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        copy([memoryview(data)], str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
