"""The inputs of a call, from the texts of ``--input``.

``name=file.npy``          one input from a file; if the file has several tensors, the one of that name
``file.npz``               all inputs that the file contains, by name
``name=random:2x3x64``     random values of this shape; with ``random`` alone, of a shape that fits the other inputs

Inputs that are not given are random, within the range that the package declares.
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
    """An input's value and its source: a file's path, or ``random``."""

    tensor: HostTensor
    source: str


def gather(
    index: PackageIndex,
    texts: Sequence[str],
    folder: Path,
    *,
    profile: PackedProfile | None = None,
    which: str = "opt",
    seed: int = 0,
) -> dict[str, Given]:
    """Return every input of a package by name. Paths in `texts` are relative to `folder`. Raises UsageError."""
    files: dict[str, Given] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    named: set[str] = set()
    for text in texts:
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
    """Parse a shape such as ``2x3x224x224``. An empty text, or ``scalar``, is the shape (). Raises UsageError."""
    if text in ("", "scalar"):
        return ()
    if not _SHAPE.fullmatch(text):
        raise UsageError(f"{text!r} is not a shape", hint="write sizes with x between them, such as 2x3x224x224")
    return tuple(int(size) for size in text.split("x"))


def check_name(index: PackageIndex, name: str) -> str:
    """Return `name`. Raises UsageError if the package has no such input."""
    names = [entry.name for entry in index.inputs]
    if name not in names:
        raise UsageError(f"model {index.model!r} has no input {name!r}", hint=suggestion(name, names, "inputs"))
    return name


def _parse(index: PackageIndex, text: str, folder: Path) -> dict[str, Given | tuple[int, ...] | None]:
    """Return input → its value, its shape, or None (any shape), for one text of ``--input``."""
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


def _of_file(index: PackageIndex, path: Path, text: str) -> dict[str, Given]:
    tensors = read(path)
    if "" in tensors:
        if len(index.inputs) != 1:
            names = ", ".join(entry.name for entry in index.inputs)
            raise UsageError(
                f"{text} has one tensor, but {index.model!r} has the inputs {names}", hint=f"write NAME={text}"
            )
        return {index.inputs[0].name: Given(tensors[""], text)}
    return {check_name(index, name): Given(tensor, text) for name, tensor in tensors.items()}
