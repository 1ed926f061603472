"""``trtbuild inspect``: what is in a package, and what is known of it beyond its files.

What a package's index says is certain. The rest is there as far as it is: layers and their places in the user's module (in
the package), provenance (beside it), the trtexec command (from the recipes of its engines, in the cache), and device memory
(of a GPU here).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.core import provenance
from trtbuild.core.engine_layers import layers
from trtbuild.core.packaging import SCHEMA
from trtbuild.driver.inspection.memory import device_memory
from trtbuild.driver.inspection.onnx_files import write_onnx
from trtbuild.driver.inspection.source_form import source_form
from trtbuild.driver.inspection.trtexec import Command, command
from trtbuild.driver.packages_here import package_of
from trtbuild.driver.subjects import Subject, of_package
from trtbuild.driver.workspace import Request
from trtbuild.errors import UsageError
from trtbuild.regular import read_regular

Document = dict[str, Any]


def inspect(request: Request, name: str, *, memory: bool = False, onnx: str | None = None) -> Document:
    """``trtbuild.inspect/1`` of a package, given by its directory or by its model's name.

    `memory` asks the GPU for what engines need of it. `onnx` is a directory (relative to the project) that the engines'
    ONNX models are written into. Raises UsageError, BlobMissing, EntryCorrupt.
    """
    path = package_of(request, name)
    index = _index(path)
    subject = of_package(Path(request.project).absolute(), path, name, offline=request.offline or onnx is None)
    written = write_onnx(request, index, subject, onnx) if onnx is not None else {}
    engines = [
        {
            "target": target,
            "partition": partition,
            "plan": plan,
            "size": index["files"][plan]["size"],
            "sha256": index["files"][plan]["sha256"],
            "layers": _layers(path, index, target, partition),
            "onnx": written.get((target, partition)),
            "trtexec": _trtexec(index, subject, target, partition, written.get((target, partition))),
        }
        for target, entry in index["targets"].items()
        for partition, plan in entry["engines"].items()
    ]
    return {
        "schema": "trtbuild.inspect/1",
        "path": str(path),
        "source": source_form(path),
        "index": index,
        "engines": engines,
        "memory": device_memory(path) if memory else None,
        "provenance": _provenance(path, subject).to_json(),
    }


def _index(path: Path) -> Mapping[str, Any]:
    try:
        index = json.loads((path / "index.json").read_bytes())
    except ValueError:
        raise UsageError(f"{path}/index.json is not JSON", hint="build the package again") from None
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        schema = index.get("schema") if isinstance(index, dict) else None
        raise UsageError(f"{path} is a package of another format: {schema!r}", hint="build it again")
    return index


def _layers(path: Path, index: Mapping[str, Any], target: str, partition: str) -> list[Document]:
    """The layers of an engine; none where the package's files do not tell."""
    found = index["targets"][target].get("layers", {}).get(partition)
    if found is None:
        return []
    try:
        names = json.loads(read_regular(path / "names.json"))[target][partition]
        return [layer.to_json() for layer in layers(json.loads(read_regular(path / found)), names)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _trtexec(
    index: Mapping[str, Any], subject: Subject, target: str, partition: str, onnx: str | None
) -> Document | None:
    """None where the recipe of the engine is not in the cache."""
    recipe = subject.recipes.get(f"engine/{partition}@{target}")
    if recipe is None:
        return None
    entry = index["targets"][target]
    part = next(part for part in entry["partitions"]["partitions"] if part["name"] == partition)
    sms = entry.get("sms") or [entry["sm"]]
    made: Command = command(recipe, part, sms, onnx or f"{partition}.onnx", f"{partition}.plan")
    return {**made.to_json(), "text": str(made)}


def _provenance(path: Path, subject: Subject) -> provenance.Provenance:
    try:
        data: bytes | None = read_regular(path / provenance.NAME)
    except OSError:
        data = None
    return provenance.of(data, subject.index or "")
