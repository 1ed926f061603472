"""Make the inputs of comparisons: random values that the model accepts, and files of inputs.

Rules
1. The values of an input with a range are drawn uniformly from this range. Without a range, floats are normally
   distributed, as in the trace, and bools are random, with both values along the last axis. For a point with `zeros`, about
   a quarter of the floats are replaced by 0, unless 0 is outside the range.
2. Without a range, integers are 0 or 1, because the trace has shown that the model accepts these. If an input indexes the
   rows of tables (token ids, positions), its values are drawn from the numbers of all rows of the smallest table.
   A table whose size is dynamic counts as a table of two rows.
3. A file of inputs is a safetensors file with the model's inputs by name. Other tools can read it. A state of a dtype that
   such a file does not have (complex64, uint16) is stored as its bytes, as a uint8 tensor with one axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trtbuild.atomic import replace_file
from trtbuild.core.model.verification import Point
from trtbuild.core.values import safetensors
from trtbuild.core.values.value_ranges import ValueRange
from trtbuild.errors import UsageError
from trtbuild.regular import read_regular
from trtbuild.stages.program.functional import Program
from trtbuild.stages.raw_tensors import raw_bytes, raw_tensor, tensor_of
from trtbuild.stages.values import draw_in_range, draw_mask

#: Operators that do not change the values of an index.
_SAME_INDEX = (
    "alias", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze",
    "to", "_to_copy", "transpose", "t", "unsqueeze", "view", "_unsafe_view",
)  # fmt: skip


def integer_ends(program: Program) -> list[int]:
    """Return, for each input of a program, the smallest integer that is too large for it."""
    return [_integer_end(node) for node in program.input_nodes]


def _integer_end(node: torch.fx.Node) -> int:
    """Return the number of rows of the smallest table that `node` is an index of, at least 2; 2 without a table."""
    sizes: list[int] = []
    waiting, seen = [node], {node}
    while waiting:
        value = waiting.pop()
        for user in value.users:
            name = getattr(user.target, "__name__", str(user.target)).partition(".")[0]
            if name == "embedding" and user.args[1] is value:
                sizes.append(_row_count(user.args[0]))
            elif name in ("index_select", "gather") and user.args[2] is value:
                sizes.append(_row_count(user.args[0], user.args[1]))
            elif name in ("index", "_unsafe_index") and isinstance(user.args[1], list | tuple):
                sizes += [_row_count(user.args[0], axis) for axis, index in enumerate(user.args[1]) if index is value]
            elif name in _SAME_INDEX and user.args[0] is value and user not in seen:
                seen.add(user)
                waiting.append(user)
    return max(2, min(sizes)) if sizes else 2


def _row_count(table: Any, axis: Any = 0) -> int:
    shape = table.meta["val"].shape
    size = shape[axis] if isinstance(axis, int) and shape else 2
    return size if isinstance(size, int) else 2  # a dynamic size may be small


def random_inputs(
    inputs: Sequence[tuple[str, str]],
    shapes: Sequence[Sequence[int]],
    point: Point,
    ends: Sequence[int],
    ranges: Mapping[str, ValueRange],
) -> list[torch.Tensor]:
    """Draw one tensor for each input (name, dtype), in order. Equal arguments give equal tensors.

    `ends` are the results of `integer_ends`. `ranges` maps the name of an input to its range."""
    generator = torch.Generator().manual_seed(point.seed)
    tensors = []
    for (name, dtype), shape, end in zip(inputs, shapes, ends, strict=True):
        value_range = ranges.get(name)
        if value_range is None:
            value = _random_tensor(getattr(torch, dtype), tuple(shape), end, generator)
        else:
            value = draw_in_range(getattr(torch, dtype), shape, value_range, generator)
        lowest, highest = value_range or (-1, 1)
        if point.zeros and value.is_floating_point() and lowest <= 0 <= highest:
            value = value.masked_fill(torch.rand(tuple(shape), generator=generator) < 0.25, 0.0)
        tensors.append(value)
    return tensors


def _random_tensor(dtype: torch.dtype, shape: tuple[int, ...], end: int, generator: torch.Generator) -> torch.Tensor:
    if dtype is torch.bool:
        return draw_mask(shape, generator)
    if dtype.is_complex:
        return torch.complex(*(torch.randn(shape, generator=generator) for _ in range(2))).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, min(end, torch.iinfo(dtype).max), shape, generator=generator).to(dtype)


def write_inputs(path: Path, inputs: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> None:
    """Write inputs by name to a file, with `about` as its metadata. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = []
    for name, value in inputs.items():
        name, dtype, shape, raw = raw_tensor(name, value)
        tensors.append((name, dtype, shape, raw) if safetensors.has_dtype(dtype) else (name, "uint8", (len(raw),), raw))
    replace_file(path, safetensors.to_bytes(tensors, about))


def read_inputs(path: Path, inputs: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Read `inputs` (name, dtype) from a file of inputs, in order.

    Raises UsageError if the file cannot be read, or if an input is missing or has another dtype or shape."""
    tensors_by_name: dict[str, torch.Tensor] = {}
    try:
        for entry, raw in safetensors.read_tensors(read_regular(path)):
            tensors_by_name[entry.name] = tensor_of(entry.dtype, entry.shape, raw)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is not a file of inputs: {error}", hint="trtbuild verify writes them") from error
    for (name, dtype), shape in zip(inputs, shapes, strict=True):
        if name not in tensors_by_name:
            raise UsageError(f"{path} has no input {name!r}", hint=f"it has: {', '.join(tensors_by_name)}")
        if not safetensors.has_dtype(dtype):
            tensors_by_name[name] = _tensor_of_bytes(tensors_by_name[name], dtype, shape)
        if tensors_by_name[name].dtype != getattr(torch, dtype):
            raise UsageError(f"input {name!r} in {path} is {tensors_by_name[name].dtype}, but the model takes {dtype}")
        if tensors_by_name[name].shape != tuple(shape):
            raise UsageError(
                f"input {name!r} in {path} has the shape {list(tensors_by_name[name].shape)}, but the model takes "
                f"{list(shape)}"
            )
    return [tensors_by_name[name] for name, _ in inputs]


def _tensor_of_bytes(stored: torch.Tensor, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """The tensor that `write_inputs` has stored as bytes (rule 3); `stored` itself if the bytes do not fit."""
    try:
        return tensor_of(dtype, shape, raw_bytes(stored)) if stored.dtype is torch.uint8 else stored
    except (ValueError, RuntimeError):
        return stored
