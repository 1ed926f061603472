"""Write the ONNX models of engines, with their weights, as files for trtexec, Netron and onnxruntime."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file, replacing, write_all
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.network_document import is_document
from trtbuild.driver.answers.package_facts import PackageFacts
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import BlobMissing, EnvironmentFault, UsageError
from trtbuild.store.layers.layered import LayeredStore

#: Weights that have more bytes together are written to a file beside the model. So a model with weights stays far below
#: 2 GiB: protobuf cannot read larger messages.
MAX_INLINE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20

Bytes = bytes | bytearray | memoryview


def write_onnx(request: Request, index: PackageIndex, facts: PackageFacts, folder: str) -> dict[tuple[str, str], str]:
    """Write ``<folder>/<target>/<partition>.onnx`` for each engine.

    Weights that have more than `MAX_INLINE_BYTES` together are in ``<partition>.onnx.data``, others in the model. `facts`
    contains the recipes of the engines that are in the cache. Return (target, partition) → path, relative to the project
    unless `folder` is absolute. Raises

    * UsageError if the recipe of an engine is not in the cache, if the engine was compiled from a TensorRT network, or if a
      file cannot be written or removed
    * BlobMissing or EntryCorrupt if a model or weight is missing or damaged
    * EnvironmentFault if onnx or numpy is not installed.
    """
    try:
        import trtbuild.stages.convert.weights
        import trtbuild.toolchain.compiling.preparing  # noqa: F401 (checked before the store is opened)
    except ImportError as error:
        raise EnvironmentFault(
            f"writing ONNX models needs {error.name}, which is not installed", hint="pip install onnx numpy"
        ) from None
    project = Path(request.project).absolute()
    configuration = wiring.load_configuration(project)
    store = wiring.open_store(project, replace(configuration, remotes=()) if request.offline else configuration)
    paths = {}
    with contextlib.closing(store):
        for target, entry in index.targets.items():
            for partition in entry.engines:
                path = f"{folder}/{target}/{partition}.onnx"
                parts = _recipe_parts(facts, target, partition)
                model, weights = _read_model(parts, f"{partition}@{target}", store)
                _write_model(project / path, model, weights, parts["toolchain"])
                paths[target, partition] = path
    return paths


def _read_model(parts: Mapping[str, Any], engine: str, store: LayeredStore) -> tuple[bytes, dict[str, bytes]]:
    """Return the ONNX model, and name → weight. `parts` are those of the recipe of the engine with the name `engine`."""
    digests = [str(parts["onnx"]), *(str(weight["sha256"]) for weight in parts["weights"].values())]
    try:
        store.fetch(digests)
        model, *weight_bytes = (store.get_bytes(sha256) for sha256 in digests)
    except BlobMissing as error:
        raise BlobMissing(
            f"the ONNX model of {engine}, or a weight of it, is not in the cache: {error.text}",
            hint="run `trtbuild build` with the cache that the package was built with",
        ) from None
    if is_document(model):
        raise UsageError(
            f"{engine} was compiled from a TensorRT network, so it has no ONNX model", hint="leave --onnx out"
        )
    return model, dict(zip(parts["weights"], weight_bytes, strict=True))


def _write_model(path: Path, model: bytes, weights: Mapping[str, bytes], toolchain: Sequence[str]) -> None:
    """Write a model with its weights, prepared for `toolchain` (name, version)."""
    from trtbuild.stages.convert.weights import with_data_file, with_inline_weights
    from trtbuild.toolchain.compiling.preparing import prepare_model
    from trtbuild.toolchain.libraries.releases import release

    model, prepared = prepare_model(model, weights, release(*toolchain))
    data_file = Path(f"{path}.data")
    if sum(memoryview(data).nbytes for data in prepared.values()) <= MAX_INLINE_BYTES:
        _write_if_changed(path, with_inline_weights(model, prepared))
        try:
            data_file.unlink(missing_ok=True)  # an earlier, larger model may have left it
        except OSError as error:
            raise UsageError(f"{data_file} cannot be removed: {error.strerror or error}") from None
    else:
        model, contents = with_data_file(model, prepared, data_file.name)
        _write_data_file(data_file, contents)
        _write_if_changed(path, model)


def _recipe_parts(facts: PackageFacts, target: str, partition: str) -> dict[str, Any]:
    recipe = facts.recipes.get(f"engine/{partition}@{target}")
    if recipe is None:
        raise UsageError(
            f"the ONNX model of {partition}@{target} is not in the cache of this project",
            hint="inspect the package where it was built, or set TRTBUILD_CACHE_DIR to that cache",
        )
    return dict(recipe.parts)


def _write_data_file(path: Path, contents: Sequence[tuple[int, Bytes]]) -> None:
    try:
        if _has_contents(path, contents):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as descriptor:
            for offset, data in contents:
                os.lseek(descriptor, offset, os.SEEK_SET)
                write_all(descriptor, memoryview(data))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def _has_contents(path: Path, contents: Sequence[tuple[int, Bytes]]) -> bool:
    last_offset, last_data = contents[-1]
    if not path.is_file() or path.stat().st_size != last_offset + len(last_data):
        return False
    with open(path, "rb") as file:
        for offset, data in contents:
            file.seek(offset)
            for start in range(0, len(data), _PIECE_BYTES):
                piece = memoryview(data)[start : start + _PIECE_BYTES]
                if file.read(len(piece)) != piece:
                    return False
    return True


def _write_if_changed(path: Path, data: bytes) -> None:
    try:
        if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, durable=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
