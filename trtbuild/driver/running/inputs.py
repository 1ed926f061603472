"""The inputs of a call, from the texts of ``--input``.

``name=file.npy``          one input from a file. If the file has several tensors, the tensor ``name`` is used
``file.npz``               all inputs that the file contains, by name. ``file.npy`` is possible if the model has one input
``name=random:2x3x64``     random values of this shape. ``name=random`` chooses a shape that fits the other inputs

Other inputs are random. Random values are within the ranges that the package declares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.core.packages.package_index import PackageIndex, PackedProfile
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.running.host_tensors import HostTensor, random_tensor, read
from trtbuild.driver.running.shapes import shapes_of
from trtbuild.errors import UsageError

_SHAPE = re.compile(r"\d+(x\d+)*")
_RANDOM = "random"


@dataclass(frozen=True)
class InputValue:
    """An input's value and its source: a file's path, or ``random``."""

    tensor: HostTensor
    source: str


def gather_inputs(
    index: PackageIndex,
    texts: Sequence[str],
    folder: Path,
    *,
    profile: PackedProfile | None = None,
    which: str = "opt",
    seed: int = 0,
) -> dict[str, InputValue]:
    """Return every input of a package by name. Paths in `texts` are relative to `folder`. Raises UsageError.

    A dim that no given input sets has its min, opt or max size (`which`) in `profile`. If `profile` is None, rule 2 of
    `trtbuild.driver.running.shapes` chooses the profile.
    """
    values: dict[str, InputValue] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    given_names: set[str] = set()
    for text in texts:
        for name, parsed in _parse_input(index, text, folder).items():
            if name in given_names:
                raise UsageError(f"--input gives {name!r} twice")
            given_names.add(name)
            if isinstance(parsed, InputValue):
                values[name], shapes[name] = parsed, parsed.tensor.shape
            elif parsed is not None:
                shapes[name] = parsed
    all_shapes = shapes_of(index, shapes, profile, which)
    return {
        entry.name: values.get(entry.name)
        or InputValue(random_tensor(entry.dtype, all_shapes[entry.name], seed + number, entry.range), _RANDOM)
        for number, entry in enumerate(index.inputs)
    }


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as ``2x3x224x224``. An empty text or ``scalar`` is the shape (). Raises UsageError."""
    if text in ("", "scalar"):
        return ()
    if not _SHAPE.fullmatch(text):
        raise UsageError(f"{text!r} is not a shape", hint="write sizes with x between them, such as 2x3x224x224")
    return tuple(int(size) for size in text.split("x"))


def check_input_name(index: PackageIndex, name: str) -> str:
    """Return `name`. Raises UsageError if the package has no such input."""
    names = [entry.name for entry in index.inputs]
    if name not in names:
        raise UsageError(f"model {index.model!r} has no input {name!r}", hint=suggestion(name, names, "inputs"))
    return name


def _parse_input(index: PackageIndex, text: str, folder: Path) -> dict[str, InputValue | tuple[int, ...] | None]:
    """Return input → its value, its shape, or None (random, without a given shape), for one ``--input``."""
    name, equals, value = text.partition("=")
    if not equals:
        return dict(_inputs_from_file(index, folder / text, text))
    check_input_name(index, name)
    if value == _RANDOM:
        return {name: None}
    if value.startswith(f"{_RANDOM}:"):
        return {name: parse_shape(value.removeprefix(f"{_RANDOM}:"))}
    if not value:
        raise UsageError(f"--input {text} names no file", hint=f"{name}=FILE, {name}=random or {name}=random:2x3x64")
    tensors = read(folder / value)
    if name in tensors or len(tensors) == 1:
        return {name: InputValue(tensors[name] if name in tensors else next(iter(tensors.values())), value)}
    raise UsageError(f"{value} has no tensor {name!r}", hint=suggestion(name, sorted(tensors), "tensors"))


def _inputs_from_file(index: PackageIndex, path: Path, text: str) -> dict[str, InputValue]:
    tensors = read(path)
    if "" in tensors:  # the tensor of an .npy file has no name
        if len(index.inputs) != 1:
            names = ", ".join(entry.name for entry in index.inputs)
            raise UsageError(
                f"{text} has one tensor, but {index.model!r} has the inputs {names}", hint=f"write NAME={text}"
            )
        return {index.inputs[0].name: InputValue(tensors[""], text)}
    return {check_input_name(index, name): InputValue(tensor, text) for name, tensor in tensors.items()}
