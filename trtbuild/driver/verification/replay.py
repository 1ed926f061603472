"""A file of inputs as a point: which sizes the dims have there, and which profile takes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.model.shapes import Axis, ShapePlan, symbol_values
from trtbuild.core.model.spec import Model
from trtbuild.core.model.verification import Point
from trtbuild.errors import UsageError
from trtbuild.regular import open_regular

_MOST_HEADER_BYTES = 1 << 20


def point_of(path: Path, model: Model, shapes: ShapePlan) -> Point:
    """The point of the inputs in a safetensors file. Raises UsageError where no profile of the model takes them."""
    shown = path.name
    found = _shapes(path)
    sizes: dict[int, int] = {}
    for entry, axes in zip(model.inputs, shapes.shapes, strict=True):
        if entry.name not in found:
            raise UsageError(f"{shown} has no input {entry.name!r}", hint=f"it has: {', '.join(found)}")
        shape = found[entry.name]
        fits = len(shape) == len(axes) and all(
            size == axis if isinstance(axis, int) else sizes.setdefault(axis.symbol, size) == size
            for size, axis in zip(shape, axes, strict=True)
        )
        if not fits:
            raise UsageError(
                f"input {entry.name!r} in {shown} has shape {list(shape)}, which the model does not take",
                hint=f"it takes {_axes(axes, shapes)}",
            )
    values = tuple(sizes[number] for number in range(len(shapes.symbols)))
    for number, profile in enumerate(model.profiles):
        ends = (symbol_values(shapes, profile, which) for which in ("min", "max"))
        if all(low <= size <= high for low, size, high in zip(next(ends), values, next(ends), strict=True)):
            return Point(number, "replay", values, 0)
    dims = ", ".join(f"{symbol.name} = {size}" for symbol, size in zip(shapes.symbols, values, strict=True))
    raise UsageError(f"no profile of model {model.name!r} takes the inputs in {shown} ({dims})", hint=_ranges(model))


def _ranges(model: Model) -> str:
    """``rows: x from [1, 8] to [8, 8]`` for each profile."""
    return "; ".join(
        f"{profile.name}: "
        + ", ".join(f"{name} from {list(sizes.min)} to {list(sizes.max)}" for name, sizes in profile.shapes)
        for profile in model.profiles
    )


def _axes(axes: Sequence[Axis], shapes: ShapePlan) -> str:
    named = (str(axis) if isinstance(axis, int) else shapes.symbols[axis.symbol].name for axis in axes)
    return f"[{', '.join(named)}]"


def _shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    try:
        with open(open_regular(path), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length if length <= _MOST_HEADER_BYTES else 0))
        return {name: _sizes(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path.name} is no file of inputs", hint="it is in the form of safetensors") from error


def _sizes(shape: Sequence[object]) -> tuple[int, ...]:
    """Raises TypeError for what is no shape."""
    sizes = tuple(size for size in shape if type(size) is int)
    if len(sizes) != len(shape):
        raise TypeError("a size is a whole number")
    return sizes
