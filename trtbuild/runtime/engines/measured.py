"""Engine outputs whose size depends on data, such as those of NonZero."""

from __future__ import annotations

from typing import Any

from trtbuild.errors import EngineError
from trtbuild.runtime.engines.workspaces import ALIGNMENT, allocate_aligned
from trtbuild.runtime.memory.device_memory import Array, Memory


class MeasuredOutput:
    """An output whose size depends on data: a `trtbuild.core.engines.execution.OutputMemory`."""

    def __init__(self, memory: Memory, stream: int) -> None:
        self._memory = memory
        self._stream = stream
        self._buffer: Array | None = None
        #: From the beginning of the buffer to the address that TensorRT got.
        self._offset_bytes = 0
        self._shape: tuple[int, ...] | None = None
        self._error: Exception | None = None

    def begin_run(self) -> None:
        """Forget the previous run."""
        self._buffer = self._shape = self._error = None

    def allocate(self, name: str, size_bytes: int, alignment: int) -> int:
        try:
            self._buffer, address = allocate_aligned(self._memory, max(size_bytes, ALIGNMENT), alignment, self._stream)
            self._offset_bytes = address - self._buffer.data_ptr()
            return address
        except Exception as error:  # TensorRT, which calls this, would lose the error. `raise_error` raises it later.
            self._error = error
            return 0

    def set_final_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def raise_error(self) -> None:
        """Raise the error of `allocate`, if there was one."""
        if self._error is not None:
            raise self._error

    def result(self, dtype: Any) -> Array:
        """Return the output, with the shape that TensorRT reported."""
        if self._buffer is None or self._shape is None:
            raise EngineError("TensorRT did not report the shape of an output that it computed")
        buffer, self._buffer = self._buffer, None
        return self._memory.view(buffer, self._shape, dtype, self._offset_bytes)
