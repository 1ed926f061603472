"""Tensors in host memory, with numpy alone: made up, read from files, written to files.

Rules
1. A tensor is a NumPy array and torch's name of its element type; bfloat16, which NumPy lacks, is its bits as uint16.
2. Files are read for their data alone: ``.npy`` and ``.npz`` without pickle, ``.safetensors`` by its format
   (https://github.com/huggingface/safetensors, "Format").
3. Made-up values follow from the seed, and lie in the range that an input says. Without one floats are normal, integers
   0 and 1 (legal ids and masks), bools mixed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.values.value_ranges import ValueRange
from trtbuild.errors import EnvironmentFault, UsageError
from trtbuild.regular import open_regular, read_regular

if TYPE_CHECKING:
    import numpy as np

#: Endings of files that hold tensors.
ENDINGS = (".npy", ".npz", ".safetensors")

#: torch's name → the name in a safetensors file. NumPy's is torch's, but for bfloat16.
_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class HostTensor:
    """`data` has the values; of bfloat16 the bits."""

    dtype: str
    data: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.data.shape)

    def as_floats(self) -> np.ndarray:
        """The values as NumPy can compute with them."""
        numpy = require_numpy()
        if self.dtype != "bfloat16":
            return self.data
        bits = numpy.asarray(self.data.astype(numpy.uint32) << 16)
        values: np.ndarray = bits.view(numpy.float32)
        return values


def require_numpy() -> Any:
    """numpy. Raises EnvironmentFault."""
    try:
        import numpy
    except ImportError:
        raise EnvironmentFault("tensors are read and made with numpy", hint="pip install numpy") from None
    return numpy


def made_up(dtype: str, shape: Sequence[int], seed: int, within: ValueRange | None = None) -> HostTensor:
    """Rule 3. Raises UsageError for a dtype that numpy has not."""
    numpy = require_numpy()
    values, size = numpy.random.default_rng(seed), tuple(shape)
    if within is not None:
        made = _within(dtype, size, within, values)
    elif dtype == "bool":
        made = values.random(size) > 0.5
    elif dtype == "bfloat16":
        floats = numpy.asarray(values.standard_normal(size, dtype=numpy.float32))
        made = (floats.view(numpy.uint32) >> 16).astype(numpy.uint16)
    elif dtype.startswith("complex"):
        made = (values.standard_normal(size) + 1j * values.standard_normal(size)).astype(dtype)
    elif dtype.startswith("float") and hasattr(numpy, dtype):
        made = numpy.asarray(values.standard_normal(size, dtype=numpy.float32)).astype(dtype)
    elif dtype.startswith(("int", "uint")) and hasattr(numpy, dtype):
        made = values.integers(0, 2, size).astype(dtype)
    else:
        raise UsageError(f"no values can be made up for {dtype}", hint="give the input as a file")
    return HostTensor(dtype, numpy.asarray(made))  # of a scalar numpy computes no array


def _within(dtype: str, size: tuple[int, ...], ends: ValueRange, values: Any) -> Any:
    """Values from the first to the last of `ends`, as `HostTensor` has them."""
    numpy = require_numpy()
    low, high = ends
    if dtype.startswith(("int", "uint")):
        return values.integers(low, high, size, dtype=dtype, endpoint=True)
    share = numpy.asarray(values.random(size))
    made = numpy.clip((1 - share) * low + share * high, low, high)  # the difference of the ends may be infinite
    if dtype != "bfloat16":
        return made.astype(dtype)
    return (numpy.asarray(made.astype(numpy.float32)).view(numpy.uint32) >> 16).astype(numpy.uint16)


# -- files


def read(path: Path) -> dict[str, HostTensor]:
    """The tensors of a file by name; the one of an ``.npy`` file is called "". Raises UsageError."""
    if path.suffix not in ENDINGS:
        hint = f"they end in {', '.join(ENDINGS)}"
        if path.suffix in (".pt", ".pth"):
            hint += "; a tensor of torch.save becomes one by numpy.save(FILE, tensor.numpy())"
        raise UsageError(f"{path} is no file of tensors", hint=hint)
    numpy = require_numpy()
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path, numpy)
        with open(open_regular(path), "rb") as file:
            found = numpy.load(file, allow_pickle=False)
            arrays = {"": found} if path.suffix == ".npy" else {name: found[name] for name in found.files}
            return {name: _of_numpy(array, path) for name, array in arrays.items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise anything for what is cut off or altered
        raise UsageError(f"{path} is no whole {path.suffix} file: {error}") from None


def _of_numpy(array: Any, path: Path) -> HostTensor:
    name = array.dtype.newbyteorder("=").name
    if name not in _SAFETENSORS and name not in ("uint16", "uint32", "uint64", "complex64", "complex128"):
        raise UsageError(f"{path} holds {array.dtype}, which is no type of tensors")
    return HostTensor(name, array.astype(array.dtype.newbyteorder("="), copy=False))


def _read_safetensors(path: Path, numpy: Any) -> dict[str, HostTensor]:
    data = read_regular(path)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _LONGEST_HEADER):
        raise ValueError("its header is cut off")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is none")
    names = {short: name for name, short in _SAFETENSORS.items()}
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = names[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        stored = numpy.dtype("uint16" if dtype == "bfloat16" else dtype)
        if begin < 0 or len(raw) != math.prod(shape) * stored.itemsize:
            raise ValueError(f"{name} is cut off")
        found[name] = HostTensor(dtype, numpy.frombuffer(raw, stored).reshape(shape))
    return found


def write(path: Path, tensors: Mapping[str, HostTensor]) -> None:
    """Write a file of tensors, by its ending. Raises UsageError."""
    numpy = require_numpy()
    try:
        if path.suffix == ".npy":
            if len(tensors) != 1:
                raise UsageError(f"{path} can hold one tensor, and there are {len(tensors)}", hint="write an .npz file")
            numpy.save(path, _for_numpy(next(iter(tensors.values())), path), allow_pickle=False)
        elif path.suffix == ".npz":
            numpy.savez(path, **{name: _for_numpy(tensor, path) for name, tensor in tensors.items()})
        elif path.suffix == ".safetensors":
            path.write_bytes(_safetensors(tensors, path))
        else:
            raise UsageError(f"{path} is no file of tensors", hint=f"name one that ends in {', '.join(ENDINGS)}")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None


def _for_numpy(tensor: HostTensor, path: Path) -> np.ndarray:
    if tensor.dtype == "bfloat16":
        raise UsageError(f"{path.suffix} files have no bfloat16", hint="write a .safetensors file")
    return tensor.data


def _safetensors(tensors: Mapping[str, HostTensor], path: Path) -> bytes:
    numpy = require_numpy()
    header, pieces, offset = {}, [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _SAFETENSORS:
            raise UsageError(f"{path.suffix} files have no {tensor.dtype}", hint="write an .npz file")
        raw = numpy.ascontiguousarray(tensor.data).tobytes()
        place = [offset, offset + len(raw)]
        header[name] = {"dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        pieces.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])
