"""Measure non-contiguous inputs from other libraries, without PyTorch: ``python -m benchmarks.gpu.strided``.

An engine reads contiguous arrays only, so trtbuild copies other inputs in each run. The benchmark compares each copy with
the same view in NumPy, and the time of the copy with the time to copy as many contiguous bytes. It needs a GPU, its
driver, cuda-python and NumPy.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda.bindings import driver

from trtbuild.runtime.memory.arrays import DeviceArray
from trtbuild.runtime.memory.cuda_memory import CudaMemory
from trtbuild.runtime.memory.strides import rows_of

_DTYPES = ("float32", "float16", "uint8", "int64")
_REPEATS = 20


class _View:
    """A view of `base`, an array on the GPU, with the offset and strides that `view` has in the array `host`."""

    def __init__(self, base: DeviceArray, host: Any, view: Any, stream: int) -> None:
        self._base = base
        offset = view.__array_interface__["data"][0] - host.ctypes.data
        self.__cuda_array_interface__ = {
            "shape": view.shape,
            "typestr": view.dtype.str,
            "data": (base.address + offset, False),
            "strides": view.strides,
            "stream": stream,
            "version": 3,
        }


def _views(images: Any) -> Iterator[tuple[str, Any]]:
    channels_first = images.transpose(0, 3, 1, 2)
    yield "channels first", channels_first[:1]
    yield "channels first, batch", channels_first
    yield "channels first, cropped", channels_first[:1, :, 8:-8, 8:-8]
    yield "two of three channels", images[..., :2]
    yield "every other row", images[:, ::2]
    yield "a matrix, transposed", images.reshape(-1, images.shape[2] * 3).T


def main() -> None:
    """Print a row for each view and dtype. Exit with 1 if a copy is wrong."""
    memory = CudaMemory(driver, 0)
    stream, wrong_count = memory.stream(), 0
    with memory.on_device():
        for dtype in _DTYPES:
            images = np.random.default_rng(0).integers(0, 250, (8, 224, 224, 3)).astype(dtype)
            base = memory.upload(images, dtype, stream)
            for name, view in _views(images):
                array = memory.adopt(_View(base, images, view, stream), "x", stream)
                right = np.array_equal(memory.contiguous_copy(array, stream).numpy(), view)
                wrong_count += not right
                contiguous = memory.empty(view.shape, dtype, stream)
                copy_s = _median(memory, stream, functools.partial(memory.contiguous_copy, array, stream))
                floor_s = _median(memory, stream, functools.partial(memory.contiguous_copy, contiguous, stream))
                copies = len(list(rows_of(array.shape, array.strides or ())))
                print(
                    f"{dtype:8} {name:24} {view.shape!s:20} {'right' if right else 'WRONG'}  {copies:5} copies  "
                    f"{copy_s * 1e6:9.1f} µs  {copy_s / floor_s:8.2f} × the contiguous copy"
                )
    raise SystemExit(1 if wrong_count else 0)


def _median(memory: CudaMemory, stream: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        memory.synchronize(stream)
        started = time.perf_counter()
        result = work()
        memory.synchronize(stream)
        times.append(time.perf_counter() - started)
        del result
    return statistics.median(times)


if __name__ == "__main__":
    main()
