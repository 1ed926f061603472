"""Tensors in host memory: random tensors, and files of tensors. This module needs only NumPy.

Rules
1. A tensor is a NumPy array and torch's name of its dtype. NumPy has no bfloat16, so the array of a bfloat16
   tensor is uint16, with the same bits.
2. A file never runs code when it is read: NumPy reads ``.npy`` and ``.npz`` without pickle, and
   `trtbuild.core.values.safetensors` parses ``.safetensors``.
3. The same seed gives the same random values. Before the values are rounded to the dtype, they are in the input's range.
   Without a range, floats and complex numbers are normally distributed, and bools and integers are 0 and 1, which are valid
   ids and masks.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.values import safetensors
from trtbuild.core.values.element_types import BY_SAFETENSORS
from trtbuild.core.values.value_ranges import ValueRange
from trtbuild.errors import EnvironmentFault, UsageError
from trtbuild.regular import open_regular, read_regular

if TYPE_CHECKING:
    import numpy as np

ENDINGS = (".npy", ".npz", ".safetensors")

#: torch's name of a dtype → its name in a safetensors file. NumPy uses torch's names, but has no bfloat16.
_SAFETENSORS_NAMES = {element.name: name for name, element in BY_SAFETENSORS.items()}


@dataclass(frozen=True)
class HostTensor:
    """A tensor. `data` has its values, or its bits for bfloat16 (rule 1)."""

    dtype: str
    data: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.data.shape)

    def as_floats(self) -> np.ndarray:
        """Return the values with a dtype that NumPy can compute with. So bfloat16 becomes float32."""
        numpy = require_numpy()
        if self.dtype != "bfloat16":
            return self.data
        bits = numpy.asarray(self.data.astype(numpy.uint32) << 16)
        values: np.ndarray = bits.view(numpy.float32)
        return values


def require_numpy() -> Any:
    """Return the module numpy. Raises EnvironmentFault if NumPy is not installed."""
    try:
        import numpy
    except ImportError:
        raise EnvironmentFault(
            "numpy is needed to read and generate tensors, and is not installed", hint="pip install numpy"
        ) from None
    return numpy


def numpy_can_hold(dtype: str) -> bool:
    """Whether `HostTensor` supports a dtype, which must be bfloat16 or a dtype of NumPy."""
    return dtype in ("bool", "bfloat16") or hasattr(require_numpy(), dtype)  # numpy 1 has no name `bool`


def random_tensor(dtype: str, shape: Sequence[int], seed: int, value_range: ValueRange | None = None) -> HostTensor:
    """Return a random tensor (rule 3). Raises UsageError for a dtype that `HostTensor` does not support."""
    numpy = require_numpy()
    generator, shape_tuple = numpy.random.default_rng(seed), tuple(shape)
    if not numpy_can_hold(dtype):
        raise UsageError(f"random values of {dtype} are not supported", hint="give the input as a file")
    if value_range is not None:
        data = _random_in_range(dtype, shape_tuple, value_range, generator)
    elif dtype == "bool":
        data = generator.random(shape_tuple) > 0.5
    elif dtype == "bfloat16":
        floats = numpy.asarray(generator.standard_normal(shape_tuple, dtype=numpy.float32))
        data = (floats.view(numpy.uint32) >> 16).astype(numpy.uint16)
    elif dtype.startswith("complex"):
        data = (generator.standard_normal(shape_tuple) + 1j * generator.standard_normal(shape_tuple)).astype(dtype)
    elif dtype.startswith("float"):
        data = numpy.asarray(generator.standard_normal(shape_tuple, dtype=numpy.float32)).astype(dtype)
    else:
        data = generator.integers(0, 2, shape_tuple).astype(dtype)
    return HostTensor(dtype, numpy.asarray(data))  # for the shape (), `data` is a number


def _random_in_range(dtype: str, shape: tuple[int, ...], value_range: ValueRange, generator: Any) -> Any:
    """Return random values in `value_range`, which includes its ends, in the form of `HostTensor.data`."""
    numpy = require_numpy()
    low, high = value_range
    if dtype.startswith(("int", "uint")):
        return generator.integers(low, high, shape, dtype=dtype, endpoint=True)
    fractions = numpy.asarray(generator.random(shape))
    result = numpy.clip((1 - fractions) * low + fractions * high, low, high)  # high - low may overflow
    if dtype != "bfloat16":
        return result.astype(dtype)
    return (numpy.asarray(result.astype(numpy.float32)).view(numpy.uint32) >> 16).astype(numpy.uint16)


# -- files


def read(path: Path) -> dict[str, HostTensor]:
    """Return the tensors of a file by name. The tensor of an ``.npy`` file has the name "". Raises UsageError."""
    if path.suffix not in ENDINGS:
        hint = f"supported endings are {', '.join(ENDINGS)}"
        if path.suffix in (".pt", ".pth"):
            hint += "; convert a tensor of torch.save with numpy.save(FILE, tensor.numpy())"
        raise UsageError(f"{path} is not a file of tensors", hint=hint)
    numpy = require_numpy()
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path, numpy)
        with open(open_regular(path), "rb") as file:
            loaded = numpy.load(file, allow_pickle=False)
            arrays = {"": loaded} if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files}
            return {name: _host_tensor(array, path) for name, array in arrays.items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UsageError:
        raise
    except Exception as error:  # for a damaged file, numpy, zipfile, zlib and tokenize raise many kinds of errors
        raise UsageError(f"{path} is not a valid {path.suffix} file: {error}") from None


def _host_tensor(array: Any, path: Path) -> HostTensor:
    name = array.dtype.newbyteorder("=").name
    if name not in _SAFETENSORS_NAMES and name not in ("uint16", "uint32", "uint64", "complex64", "complex128"):
        raise UsageError(f"{path} contains {array.dtype}, which is not a dtype of tensors")
    return HostTensor(name, array.astype(array.dtype.newbyteorder("="), copy=False))


def _read_safetensors(path: Path, numpy: Any) -> dict[str, HostTensor]:
    tensors = {}
    for entry, raw in safetensors.read_tensors(read_regular(path)):
        numpy_dtype = numpy.dtype("uint16" if entry.dtype == "bfloat16" else entry.dtype)
        tensors[entry.name] = HostTensor(entry.dtype, numpy.frombuffer(raw, numpy_dtype).reshape(entry.shape))
    return tensors


def write(path: Path, tensors: Mapping[str, HostTensor]) -> None:
    """Write tensors to a file, in the format of its ending. Raises UsageError."""
    numpy = require_numpy()
    try:
        if path.suffix == ".npy":
            if len(tensors) != 1:
                raise UsageError(f"{path} can hold one tensor, and there are {len(tensors)}", hint="write an .npz file")
            numpy.save(path, _numpy_array(next(iter(tensors.values())), path), allow_pickle=False)
        elif path.suffix == ".npz":
            _write_npz(path, {name: _numpy_array(tensor, path) for name, tensor in tensors.items()})
        elif path.suffix == ".safetensors":
            path.write_bytes(_safetensors_bytes(tensors, path))
        else:
            raise UsageError(f"{path} is not a file of tensors", hint=f"supported endings are {', '.join(ENDINGS)}")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None


def _write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays with any names. `numpy.savez` refuses the name ``file``."""
    numpy_format = require_numpy().lib.format
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                numpy_format.write_array(file, array, allow_pickle=False)


def _numpy_array(tensor: HostTensor, path: Path) -> np.ndarray:
    if tensor.dtype == "bfloat16":
        raise UsageError(f"{path.suffix} files have no bfloat16", hint="write a .safetensors file")
    return tensor.data


def _safetensors_bytes(tensors: Mapping[str, HostTensor], path: Path) -> bytes:
    numpy = require_numpy()
    for tensor in tensors.values():
        if tensor.dtype not in _SAFETENSORS_NAMES:
            raise UsageError(f"{path.suffix} files have no {tensor.dtype}", hint="write an .npz file")
    return safetensors.to_bytes(
        (name, tensor.dtype, tensor.data.shape, numpy.ascontiguousarray(tensor.data).tobytes())
        for name, tensor in tensors.items()
    )
