"""`trtbuild.save`: write the result of `trtbuild.compile` or `trtbuild.load` as a package or as a ``.pt2`` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.arguments.saved_inputs import refuse_other_inputs
from trtbuild.driver.in_program.modules import positional_inputs
from trtbuild.driver.outputs.files import remove
from trtbuild.driver.outputs.packages import previous_files
from trtbuild.errors import UsageError
from trtbuild.regular import read_regular
from trtbuild.runtime.packages.package import INDEX_NAME, Package

#: Endings of files of torch.export. Torch-TensorRT uses ``.ep``.
_PT2_SUFFIXES = (".pt2", ".ep")

#: Endings that need an `output_format`, unless the path is a directory: they are usual for files of other formats.
_OTHER_SUFFIXES = frozenset({".pt", ".pth", ".ts", ".onnx", ".plan", ".engine", ".trt", ".safetensors"})

#: The allowed values of `output_format` → the format. ``"exported_program"`` is Torch-TensorRT's name for ``"pt2"``.
FORMATS = {"package": "package", "pt2": "pt2", "exported_program": "pt2"}

#: Format that only Torch-TensorRT writes → the hint.
_OTHER_FORMAT_HINTS = {
    "torchscript": 'TorchScript has no operator for these engines: write output_format="exported_program"',
    "aot_inductor": "torch._inductor.aoti_compile_and_package(torch.export.load(path), …) packages what "
    'output_format="exported_program" writes',
    "executorch": "ExecuTorch has no operator for these engines",
}


def save(
    module: Any,
    path: str | os.PathLike[str],
    *,
    output_format: str | None = None,
    target: str | None = None,
    inputs: Any = None,
    arg_inputs: Any = None,
    kwarg_inputs: Any = None,
    dynamic_shapes: Any = None,
    retrace: bool | None = None,
) -> Path:
    """Write the result of `trtbuild.compile` or `trtbuild.load` to `path`, and return the path.

    * ``output_format="package"`` (the default): a directory that `trtbuild.load` opens. It replaces a package that is in
      the directory. Files that do not belong to a package stay there.
    * ``output_format="exported_program"`` or ``"pt2"`` (the default if `path` ends with ``.pt2`` or ``.ep``): a file that
      `trtbuild.load` opens. After ``import trtbuild``, ``torch.export.load`` also opens it. The file is for one `target`,
      which has to be named if the package has several.
    * `inputs` (or `arg_inputs`), `kwarg_inputs` and `dynamic_shapes` are arguments of Torch-TensorRT's `save`, and are not
      needed. If they are given, the module must have been compiled for them. `retrace` has no effect, because `save` does
      not trace.

    `output_format` is required if `path` has the ending of another format, such as ``.ts``, and is not a directory.

    Raises UsageError, ConversionRefused (torch.export rejects the model), PackageDamaged, OSError.
    """
    package = getattr(module, "package", None)
    if not isinstance(package, Package):
        raise UsageError(
            f"trtbuild cannot save a {type(module).__name__}",
            hint="give the result of trtbuild.compile or trtbuild.load",
        )
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise checked.wrong_value("path", "a path", path)
    destination = Path(path)
    format_name = (
        output_format if output_format is not None else "pt2" if destination.suffix in _PT2_SUFFIXES else "package"
    )
    if output_format is None and destination.suffix in _OTHER_SUFFIXES and not destination.is_dir():
        raise UsageError(
            f"{destination.name!r} has the ending of a file, but a package is a directory",
            hint=f'write {destination.stem}.pt2 for a file of torch.export.load, or give output_format="pt2" or "package"',
        )
    if format_name in _OTHER_FORMAT_HINTS:
        raise UsageError(
            f"trtbuild does not write output_format={format_name!r}", hint=_OTHER_FORMAT_HINTS[format_name]
        )
    if format_name not in FORMATS:
        raise UsageError(f"there is no output_format {format_name!r}", hint=f"there are: {', '.join(FORMATS)}")
    refuse_other_inputs(package.index, positional_inputs(inputs, arg_inputs), kwarg_inputs, dynamic_shapes)
    if FORMATS[format_name] == "pt2":
        _write(destination, pt2_bytes(package, _target_name(package, target)))
        return destination
    if target is not None:
        raise UsageError(
            f"target={target!r} is given, but a package directory contains all targets",
            hint='leave target out, or write output_format="pt2"',
        )
    if destination.is_file():
        raise UsageError(
            f"{destination} is a file, but a package is a directory", hint="name a directory, or a .pt2 file"
        )
    _write_package(package, destination)
    return destination


def pt2_bytes(package: Package, target: str) -> bytes:
    """Return the ``.pt2`` file for one target of a package."""
    from trtbuild.driver.packages.engine_operator import register
    from trtbuild.runtime.calls.torch_part import new_tensors_on_cpu
    from trtbuild.stages.pt2.writing import about_text, write_pt2

    register()
    index = package.index
    with new_tensors_on_cpu():
        return write_pt2(
            index, target, lambda name: package.read([name])[name], about_text(index, target, package.digest)
        )


def _target_name(package: Package, target: str | None) -> str:
    names = list(package.index.targets)
    if target is None and len(names) == 1:
        return names[0]
    if target not in names:
        problem = (
            "the package has several targets, and a .pt2 file is for one of them"
            if target is None
            else f"the package has no target {target!r}"
        )
        raise UsageError(problem, hint=f"target= one of: {', '.join(names)}")
    return target


def _write_package(package: Package, root: Path) -> None:
    old_files = previous_files(root, (), None)
    if old_files:  # a damaged source must not replace a part of the package that is in the directory
        for name in package.index.files:
            package.read([name])
        if package.path.exists() and root.samefile(package.path) and _has_index(root, package):
            return  # the package was loaded from this directory, and is still there
    for name in package.index.files:
        _write(root / name, package.read([name])[name])
    _write(root / INDEX_NAME, package.index_bytes)
    new_files = {root / name for name in package.index.files}
    for path in old_files:
        if path not in new_files:
            remove(path, root)


def _has_index(root: Path, package: Package) -> bool:
    try:
        return read_regular(root / INDEX_NAME) == package.index_bytes
    except OSError:
        return False


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, durable=True)
