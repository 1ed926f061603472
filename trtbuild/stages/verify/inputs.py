"""Inputs to compare with: random values that the model can take; and files that keep them.

Rules
1. Where an input says which values it takes, these are drawn from, each as likely as any other. What follows is for the
   others. Floats are normal, as in the trace. Bools are random.
2. Integers are 0 or 1, as in the trace, which has shown that the model takes these. Where an input is used to choose rows
   of a table (token ids, positions), all rows are chosen from: from 0 to the smallest of these tables.
3. A file of inputs is in the form of safetensors, which any tool reads: the model's inputs by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.model.verification import Point
from trtbuild.core.values.value_ranges import ValueRange
from trtbuild.errors import UsageError
from trtbuild.regular import read_regular
from trtbuild.stages.program.functional import Program
from trtbuild.stages.values import in_range

#: Operators behind which an index is still the same index.
_SAME_INDEX = (
    "alias", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze",
    "to", "_to_copy", "transpose", "t", "unsqueeze", "view", "_unsafe_view",
)  # fmt: skip

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def integer_ends(program: Program) -> list[int]:
    """For each input of a program, one more than the largest integer that it may be given."""
    return [_end(node) for node in program.input_nodes]


def _end(node: torch.fx.Node) -> int:
    """The smallest number of rows of the tables that `node` chooses from, else 2."""
    sizes: list[int] = []
    waiting, seen = [node], {node}
    while waiting:
        value = waiting.pop()
        for user in value.users:
            name = getattr(user.target, "__name__", str(user.target)).partition(".")[0]
            if name == "embedding" and user.args[1] is value:
                sizes.append(_rows(user.args[0]))
            elif name in ("index_select", "gather") and user.args[2] is value:
                sizes.append(_rows(user.args[0], user.args[1]))
            elif name in ("index", "_unsafe_index") and isinstance(user.args[1], list | tuple):
                sizes += [_rows(user.args[0], axis) for axis, index in enumerate(user.args[1]) if index is value]
            elif name in _SAME_INDEX and user.args[0] is value and user not in seen:
                seen.add(user)
                waiting.append(user)
    return max(2, min(sizes)) if sizes else 2


def _rows(table: Any, axis: Any = 0) -> int:
    shape = table.meta["val"].shape
    size = shape[axis] if isinstance(axis, int) and shape else 2
    return size if isinstance(size, int) else 2  # a dynamic size may be as small as its smallest


def random_inputs(
    inputs: Sequence[tuple[str, str]],
    shapes: Sequence[Sequence[int]],
    point: Point,
    ends: Sequence[int],
    ranges: Mapping[str, ValueRange],
) -> list[torch.Tensor]:
    """One tensor for each input (name, dtype), in order; equal for equal arguments."""
    generator = torch.Generator().manual_seed(point.seed)
    made = []
    for (name, dtype), shape, end in zip(inputs, shapes, ends, strict=True):
        values = ranges.get(name)
        if values is None:
            value = _random(getattr(torch, dtype), tuple(shape), end, generator)
        else:
            value = in_range(getattr(torch, dtype), shape, values, generator)
        if point.zeros and value.is_floating_point() and (values is None or values[0] <= 0 <= values[1]):
            value = value.masked_fill(torch.rand(tuple(shape), generator=generator) < 0.25, 0.0)
        made.append(value)
    return made


def _random(dtype: torch.dtype, shape: tuple[int, ...], end: int, generator: torch.Generator) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_complex:
        return torch.complex(*(torch.randn(shape, generator=generator) for _ in range(2))).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, min(end, torch.iinfo(dtype).max), shape, generator=generator).to(dtype)


def write(path: Path, inputs: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> None:
    """Keep inputs in a file. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    data, at = [], 0
    for name, value in inputs.items():
        plain = value.detach().contiguous().reshape(-1)
        raw = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        header[name] = {
            "dtype": _DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + len(raw)],
        }
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.fresh")
    beside.write_bytes(b"".join([struct.pack("<Q", len(text)), text, *data]))
    beside.replace(path)


def read(path: Path, inputs: Sequence[tuple[str, str]]) -> list[torch.Tensor]:
    """The inputs of a file that `write` has left, in the model's order. Raises UsageError."""
    found: dict[str, torch.Tensor] = {}
    try:
        whole = read_regular(path)
        (length,) = struct.unpack("<Q", whole[:8])
        header = json.loads(whole[8 : 8 + length])
        names = {name: dtype for dtype, name in _DTYPES.items()}
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = (8 + length + offset for offset in entry["data_offsets"])
                raw, dtype = bytearray(whole[first:last]), names[entry["dtype"]]
                flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
                found[name] = flat.reshape(entry["shape"])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise UsageError(f"{path} is no file of inputs: {error}", hint="trtbuild verify writes them") from error
    for name, dtype in inputs:
        if name not in found:
            raise UsageError(f"{path} has no input {name!r}", hint=f"it has: {', '.join(found)}")
        if found[name].dtype != getattr(torch, dtype):
            raise UsageError(f"input {name!r} in {path} is {found[name].dtype}, and the model takes {dtype}")
    return [found[name] for name, _ in inputs]
