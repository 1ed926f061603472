"""Read the point of a file of inputs: the sizes of all dims, and the first profile that accepts them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.model.shapes import Axis, ShapePlan, profile_sizes
from trtbuild.core.model.spec import Model
from trtbuild.core.model.verification import Point
from trtbuild.core.values.safetensors import LENGTH_BYTES, header_length, read_entries
from trtbuild.errors import UsageError
from trtbuild.regular import open_regular


def replayed_point(path: Path, model: Model, shapes: ShapePlan) -> Point:
    """Return the point of the inputs in a safetensors file.

    Raises UsageError if the file cannot be read, if it lacks an input, or if no profile of the model accepts the inputs.
    """
    file_name = path.name
    file_shapes = _shapes_in_file(path)
    sizes: dict[int, int] = {}
    for entry, axes in zip(model.inputs, shapes.shapes, strict=True):
        if entry.name not in file_shapes:
            raise UsageError(f"{file_name} has no input {entry.name!r}", hint=f"it has: {', '.join(file_shapes)}")
        shape = file_shapes[entry.name]
        fits = len(shape) == len(axes) and all(
            size == axis if isinstance(axis, int) else sizes.setdefault(axis.symbol, size) == size
            for size, axis in zip(shape, axes, strict=True)
        )
        units = {axis.symbol: shapes.symbols[axis.symbol].multiple_of for axis in axes if not isinstance(axis, int)}
        if not fits or any(sizes[symbol] % unit for symbol, unit in units.items()):
            raise UsageError(
                f"input {entry.name!r} in {file_name} has shape {list(shape)}, which the model does not accept",
                hint=f"it accepts {_axes_text(axes, shapes)}",
            )
    values = tuple(sizes[number] for number in range(len(shapes.symbols)))
    for number, profile in enumerate(model.profiles):
        min_sizes, max_sizes = (profile_sizes(shapes, profile, which) for which in ("min", "max"))
        if all(low <= size <= high for low, size, high in zip(min_sizes, values, max_sizes, strict=True)):
            return Point(number, "replay", values, 0)
    dims = ", ".join(f"{symbol.name} = {size}" for symbol, size in zip(shapes.symbols, values, strict=True))
    raise UsageError(
        f"no profile of model {model.name!r} takes the inputs in {file_name} ({dims})", hint=_profile_ranges(model)
    )


def _profile_ranges(model: Model) -> str:
    """Return the ranges of each profile as text, such as ``rows: x from [1, 8] to [8, 8]``."""
    return "; ".join(
        f"{profile.name}: "
        + ", ".join(f"{name} from {list(sizes.min)} to {list(sizes.max)}" for name, sizes in profile.shapes)
        for profile in model.profiles
    )


def _axes_text(axes: Sequence[Axis], shapes: ShapePlan) -> str:
    """Return the axes as text, such as ``[3, height], height a multiple of 32``."""
    symbols = {axis.symbol: shapes.symbols[axis.symbol] for axis in axes if not isinstance(axis, int)}
    names = (str(axis) if isinstance(axis, int) else symbols[axis.symbol].name for axis in axes)
    units = [f", {dim.name} a multiple of {dim.multiple_of}" for dim in symbols.values() if dim.multiple_of > 1]
    return f"[{', '.join(names)}]" + "".join(units)


def _shapes_in_file(path: Path) -> Mapping[str, tuple[int, ...]]:
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(file.read(LENGTH_BYTES), size)
            return {entry.name: entry.shape for entry in read_entries(file.read(length), size)}
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path.name} is not a valid file of inputs", hint="its format must be safetensors") from error
