"""`trtbuild.save`: what `trtbuild.compile` returned, as a package directory or as a ``.pt2`` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtbuild.driver.in_program import checked
from trtbuild.driver.outputs.files import remove
from trtbuild.driver.outputs.packages import before
from trtbuild.errors import UsageError
from trtbuild.runtime.packages.package import INDEX, Package

#: Endings of files that this does not write. A directory with such a name would deceive whoever opens it.
_FILES = frozenset({".ep", ".pt", ".pth", ".ts", ".onnx", ".plan", ".engine", ".trt", ".safetensors"})

#: The words of Torch-TensorRT's `output_format` and ours.
FORMATS = {"package": "package", "pt2": "pt2", "exported_program": "pt2"}


def save(
    module: Any, path: str | os.PathLike[str], *, output_format: str | None = None, target: str | None = None
) -> Path:
    """Write what `trtbuild.compile` or `trtbuild.load` gave to `path`, which is returned.

    A package is a directory that `trtbuild.load` opens (``output_format="package"``); a ``.pt2`` file is opened by
    ``torch.export.load`` after ``import trtbuild`` (``"pt2"``, and unless said where `path` ends so). A file is for one
    `target` of the package, which has to be named where there are several. What is there is replaced: files that the
    package before it named and this one does not are removed, others are left alone. Other endings of files (``.ep``,
    ``.ts``, ``.pt``) want their `output_format` said.

    Raises UsageError, ConversionRefused (torch.export does not take the model), PackageDamaged, OSError.
    """
    package = getattr(module, "package", None)
    if not isinstance(package, Package):
        raise UsageError(
            f"a {type(module).__name__} is nothing that trtbuild can save",
            hint="give what trtbuild.compile or trtbuild.load returned",
        )
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise checked.wrong("path", "a path", path)
    place = Path(path)
    said = output_format if output_format is not None else "pt2" if place.suffix == ".pt2" else "package"
    if output_format is None and place.suffix in _FILES and not place.is_dir():
        raise UsageError(
            f"{place.name!r} ends as a file does, and a package is a directory",
            hint=f'name a file that torch.export.load opens {place.stem}.pt2, or write output_format="pt2" or "package"',
        )
    if said not in FORMATS:
        raise UsageError(f"there is no output_format {said!r}", hint=f"there are: {', '.join(FORMATS)}")
    if FORMATS[said] == "pt2":
        _write(place, pt2_bytes(package, _target(package, target)))
        return place
    if target is not None:
        raise UsageError("a package has all its targets", hint='leave target out, or write output_format="pt2"')
    if place.is_file():
        raise UsageError(f"{place} is a file, and a package is a directory", hint="name a directory, or a .pt2 file")
    _write_package(package, place)
    return place


def pt2_bytes(package: Package, target: str) -> bytes:
    """The bytes of the ``.pt2`` file for one target of a package."""
    from trtbuild.driver.packages.engine_operator import register
    from trtbuild.runtime.calls.torch_part import made_on_the_cpu
    from trtbuild.stages.pt2.writing import about, write_pt2

    register()
    index = package.index
    with made_on_the_cpu():
        return write_pt2(index, target, lambda name: package.read([name])[name], about(index, target, package.digest))


def _target(package: Package, target: str | None) -> str:
    names = list(package.index.targets)
    if target is None and len(names) == 1:
        return names[0]
    if target not in names:
        said = "the package has several targets" if target is None else f"the package has no target {target!r}"
        raise UsageError(f"{said}, and a .pt2 file is for one", hint=f"target= one of: {', '.join(names)}")
    return target


def _write_package(package: Package, root: Path) -> None:
    if root.exists() and package.path.exists() and root.samefile(package.path):
        return
    old = before(root, (), None)
    for name in package.index.files:
        _write(root / name, package.read([name])[name])
    _write(root / INDEX, package.raw)
    wanted = {root / name for name in package.index.files}
    for path in old:
        if path not in wanted:
            remove(path, root)


def _write(path: Path, data: bytes | memoryview) -> None:
    from trtbuild.store.local.publication import copy_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    copy_atomically([memoryview(data)], str(path))
