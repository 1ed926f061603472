"""The output `pt2`: a file that ``torch.export.load`` opens. One for each target: ``<name>.pt2`` where there is one target,
``<name>.<target>.pt2`` each where there are several, because targets may be cut in different ways.

Its bytes are made by PyTorch and are not a function of the index, so they are blobs of a record of their own (`recipe`),
and `files` is given that record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs.files import OutputFile

SUFFIX = ".pt2"


def recipe(package: Record, versions: Mapping[str, str] | None) -> Recipe:
    """What the files of a package are made from. Without `versions` (a machine without torch, or with another than the lock
    file's) it is where files are found whichever torch wrote them."""
    made = keys.exported_file(package.outputs["index"].sha256, None if versions is None else versions.get("torch"))
    return keys.any_exported_file(made) if versions is None else made


def files(root: str, index: Mapping[str, Any], record: Record) -> list[OutputFile]:
    """The file of each target. `record` is that of `recipe`."""
    targets = list(index["targets"])
    return [OutputFile(path, record.outputs[f"pt2:{target}"].sha256) for target, path in _paths(root, targets)]


def before(root: Path, files: Sequence[OutputFile], last: Recipe | None) -> list[Path]:
    """The files of the package with the recipe `last`."""
    targets = dict(last.parts).get("targets") if last is not None else None
    return [Path(path) for _, path in _paths(str(root), list(targets))] if isinstance(targets, Mapping) else []


def _paths(root: str, targets: Iterable[str]) -> list[tuple[str, str]]:
    names = list(targets)
    stem = root.removesuffix(SUFFIX)
    return [(name, root if len(names) == 1 else f"{stem}.{name}{SUFFIX}") for name in names]
