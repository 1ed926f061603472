"""What a package is run on, as a command line says it.

``name=file.npy``          one input from a file (of several tensors, the one of that name)
``file.npz``               the inputs that a file names
``name=random:2x3x64``     random values of this shape; ``random`` alone: of the shape that fits the others

Inputs that nobody gives are random, within the range that the package says of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.core.packages.package_index import PackageIndex, PackedProfile
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.running.host_tensors import HostTensor, made_up, read
from trtbuild.driver.running.shapes import shapes_of
from trtbuild.errors import UsageError

_SHAPE = re.compile(r"\d+(x\d+)*")
_RANDOM = "random"


@dataclass(frozen=True)
class Given:
    """An input's value and where it comes from: a file's path, or ``random``."""

    tensor: HostTensor
    source: str


def gather(
    index: PackageIndex,
    said: Sequence[str],
    folder: Path,
    *,
    profile: PackedProfile | None = None,
    which: str = "opt",
    seed: int = 0,
) -> dict[str, Given]:
    """Every input of a package by name. Paths in `said` are relative to `folder`. Raises UsageError."""
    files: dict[str, Given] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    named: set[str] = set()
    for text in said:
        for name, found in _parse(index, text, folder).items():
            if name in named:
                raise UsageError(f"--input gives {name!r} twice")
            named.add(name)
            if isinstance(found, Given):
                files[name], shapes[name] = found, found.tensor.shape
            elif found is not None:
                shapes[name] = found
    whole = shapes_of(index, shapes, profile, which)
    return {
        entry.name: files.get(entry.name)
        or Given(made_up(entry.dtype, whole[entry.name], seed + number, entry.range), _RANDOM)
        for number, entry in enumerate(index.inputs)
    }


def parse_shape(text: str) -> tuple[int, ...]:
    """``2x3x224x224``; nothing, or ``scalar``, is a scalar's. Raises UsageError."""
    if text in ("", "scalar"):
        return ()
    if not _SHAPE.fullmatch(text):
        raise UsageError(f"{text!r} is no shape", hint="write sizes with x between them, such as 2x3x224x224")
    return tuple(int(size) for size in text.split("x"))


def check_name(index: PackageIndex, name: str) -> str:
    """`name`, if an input is called so. Raises UsageError."""
    names = [entry.name for entry in index.inputs]
    if name not in names:
        raise UsageError(f"model {index.model!r} has no input {name!r}", hint=suggestion(name, names, "inputs"))
    return name


def _parse(index: PackageIndex, text: str, folder: Path) -> dict[str, Given | tuple[int, ...] | None]:
    """Input → its value, its shape, or None for any."""
    name, equals, what = text.partition("=")
    if not equals:
        return dict(_of_file(index, folder / text, text))
    check_name(index, name)
    if what == _RANDOM:
        return {name: None}
    if what.startswith(f"{_RANDOM}:"):
        return {name: parse_shape(what.removeprefix(f"{_RANDOM}:"))}
    if not what:
        raise UsageError(f"--input {text} names no file", hint=f"{name}=FILE, {name}=random or {name}=random:2x3x64")
    tensors = read(folder / what)
    if name in tensors or len(tensors) == 1:
        return {name: Given(tensors[name] if name in tensors else next(iter(tensors.values())), what)}
    raise UsageError(f"{what} has no tensor {name!r}", hint=suggestion(name, sorted(tensors), "tensors"))


def _of_file(index: PackageIndex, path: Path, said: str) -> dict[str, Given]:
    tensors = read(path)
    if "" in tensors:
        if len(index.inputs) != 1:
            names = ", ".join(entry.name for entry in index.inputs)
            raise UsageError(
                f"{said} has one tensor, and {index.model!r} has the inputs {names}", hint=f"say NAME={said}"
            )
        return {index.inputs[0].name: Given(tensors[""], said)}
    return {check_name(index, name): Given(tensor, said) for name, tensor in tensors.items()}
