"""The output `triton`: a model in a repository of NVIDIA's Triton Inference Server. Several models may share a repository.

Rules
1. A model has the directory `<repository>/<model>`. If Triton itself runs the engines, each partition also has the
   directory `<repository>/<model>.<partition>`, with an engine for each target. The model is then an ensemble: a Triton
   model that calls others. The manifest's reader ensures that the directories of two models never collide.
2. A configuration is written after the files that it names. The configuration of an ensemble is written after the
   configurations of its steps.
3. `<model>/1/trtbuild.json` lists the written files, so that the next build can remove old ones. It is written last. Its
   directory `1` is the version directory, which Triton requires for an ensemble, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs import packages
from trtbuild.driver.outputs.files import OutputFile, generated_file
from trtbuild.driver.outputs.triton import native, served
from trtbuild.driver.outputs.triton.native_support import unsupported_reason
from trtbuild.driver.outputs.triton.text_format import Message, render
from trtbuild.regular import read_regular

SCHEMA = "trtbuild.triton/1"
LISTING = "1/trtbuild.json"
CONFIGURATION = "config.pbtxt"


def files(root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return the files of one model. Raises PackageError for an invalid index, and the errors of `model_files`."""
    return model_files(root, read_index(package.data), record)


def model_files(root: str, index: PackageIndex, record: Record) -> list[OutputFile]:
    """Return the files of one model. Raises UsageError for a dtype without a Triton type, ValueError for invalid names."""
    _check_names(index)
    reason = unsupported_reason(index)
    result = _native_files(root, index) if reason is None else _served_files(root, index, record, reason)
    listing = {
        "schema": SCHEMA,
        "model": index.model,
        "served_by": "triton" if reason is None else "trtbuild",
        "because": reason,
        "package": record.outputs["index"].sha256,
        "files": {file.path[len(root) + 1 :]: {"sha256": file.sha256} for file in result},
    }
    data = json.dumps(listing, indent=1, sort_keys=True).encode()
    return [*result, generated_file(f"{root}/{index.model}/{LISTING}", data, turn=4)]


def _check_names(index: PackageIndex) -> None:
    """Raise ValueError for names that must not be paths. The index may come from a remote."""
    partitions = [partition.name for target in index.targets.values() for partition in target.partitions.partitions]
    for name in (index.model, *index.targets, *partitions):
        if not name.isprintable() or name.startswith(".") or "/" in name or "\\" in name or not name:
            raise ValueError(f"not a name of a model, target or partition: {name!r:.80}")


def _native_files(root: str, index: PackageIndex) -> list[OutputFile]:
    result = [OutputFile(f"{root}/{path}", index.files[plan].sha256) for path, plan in native.plan_files(index)]
    model = index.model
    comment = f"an engine of {model}, which Triton runs; the model is the ensemble {model}"
    for name, message in native.engine_configurations(index).items():
        result.append(generated_file(f"{root}/{name}/{CONFIGURATION}", _configuration_bytes(comment, message), turn=2))
    data = _configuration_bytes(
        f"{model}: its engines, which Triton runs, as one model", native.ensemble_configuration(index)
    )
    return [*result, generated_file(f"{root}/{model}/{CONFIGURATION}", data, turn=3)]


def _served_files(root: str, index: PackageIndex, record: Record, reason: str) -> list[OutputFile]:
    base = f"{root}/{index.model}"
    digests = {path: file.sha256 for path, file in index.files.items()}
    result = packages.files_below(f"{base}/{served.PACKAGE_FOLDER}", digests, record)
    result.append(generated_file(f"{base}/{served.MODEL_FILE}", served.MODEL_CODE, turn=2))
    data = _configuration_bytes(
        f"{index.model}, which trtbuild's runtime serves: {reason}", served.configuration(index)
    )
    return [*result, generated_file(f"{base}/{CONFIGURATION}", data, turn=3)]


def _configuration_bytes(comment: str, message: Message) -> bytes:
    lines = [
        f"# Written by trtbuild: {comment}.",
        "# The next build writes it again. For changes of your own: configs/<name>.pbtxt and tritonserver",
        "# --model-config-name=<name>.",
    ]
    return "".join(f"{line}\n" for line in [*lines, ""]).encode() + render(message).encode()


def previous_files(root: Path, files: Sequence[OutputFile], last_recipe: Recipe | None) -> list[Path]:
    """Return the files that the existing listing names, except files outside of this model's directories."""
    model = PurePosixPath(files[-1].path).parts[-3]  # the last file is <root>/<model>/1/trtbuild.json
    try:
        listing = json.loads(read_regular(root / model / LISTING))
        if listing["schema"] != SCHEMA:
            return []
        names = [PurePosixPath(name) for name in listing["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [root / name for name in names if _is_in_directory_of(name, model)]


def _is_in_directory_of(name: PurePosixPath, model: str) -> bool:
    if name.is_absolute() or ".." in name.parts or not name.parts:
        return False
    return name.parts[0] == model or name.parts[0].startswith(f"{model}.")
