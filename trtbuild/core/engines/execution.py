"""The TensorRT calls that are needed to run an engine, as protocols and plain values that fit every version.

`trtbuild.toolchain.running.execution` implements the protocols with TensorRT. Callers must follow TensorRT's rules.

Rules
1. Only one thread at a time uses a context. All work of a context is enqueued on one stream. Threads may share an engine,
   because creating a context is safe at any time (TensorRT developer guide, "Threading").
2. The engine's device is the current device of the calling thread during every call.
3. Call `Context.set_shape` for every input before `Context.shape` and `Context.enqueue`. Check that each shape is within
   the profile's range (`Engine.profile_shapes`), because `set_shape` accepts other shapes, too. The run would then fail.
4. The memory of `use_memory` and every address must stay valid until the stream has finished the enqueued work.
5. Check every returned value. If a call returns False, TensorRT has refused it, and `Library.take_errors` returns the
   reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

#: How TensorRT-RTX compiles kernels for a new shape (``DynamicShapesKernelSpecializationStrategy``). ``lazy``: a general
#: kernel first, and a specialized kernel in the background. ``eager``: a specialized kernel at once. ``none``: general
#: kernels only. Only TensorRT-RTX has this option.
Specialization = Literal["lazy", "eager", "none"]


@dataclass(frozen=True)
class Binding:
    """One input or output of an engine. A size of -1 is dynamic; `dtype` is torch's name without the prefix."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    #: Whether TensorRT reads or writes the tensor in host memory (``TensorLocation.HOST``), or needs the input's values to
    #: compute shapes (``is_shape_inference_io``).
    on_host: bool = False


@dataclass(frozen=True)
class ContextOptions:
    """How a context runs. `library_graphs`: whether the library should capture CUDA graphs itself, if it can."""

    specialization: Specialization = "lazy"
    library_graphs: bool = False


class OutputMemory(Protocol):
    """Allocates outputs whose size is known only when the engine runs (``IOutputAllocator``)."""

    def allocate(self, name: str, size_bytes: int, alignment: int) -> int:
        """Return the address of at least `size_bytes` bytes for output `name`; never 0."""
        ...

    def set_final_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Store the final shape of output `name`. TensorRT calls this method before `Context.enqueue` returns."""
        ...


class Context(Protocol):
    """An ``IExecutionContext``. The attributes are the library's own functions, because a wrapper would slow every run."""

    #: (input, shape) → whether TensorRT accepted it.
    set_shape: Callable[[str, tuple[int, ...]], bool]
    #: (input or output, address) → whether TensorRT accepted it.
    set_address: Callable[[str, int], bool]
    #: (stream) → whether the work was enqueued.
    enqueue: Callable[[int], bool]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name` for the input shapes. A size that is known only after the run is -1.

        Raises EngineError if the engine has no tensor `name`."""
        ...

    def use_memory(self, address: int, size_bytes: int) -> None:
        """Set the device memory for activations: `Engine.memory_bytes` bytes, aligned to 512 bytes, never at address 0.

        Raises EngineError if TensorRT refuses it."""
        ...

    def set_output_memory(self, name: str, memory: OutputMemory) -> None:
        """Let `memory` allocate output `name`. Raises EngineError."""
        ...

    def time_layers(self, report: Callable[[str, float], None] | None) -> None:
        """Let each later run wait for the GPU, and call `report(layer, milliseconds)` for each layer.

        If `report` is None, later runs report no times."""
        ...


class Engine(Protocol):
    """An ``ICudaEngine`` on one device."""

    bindings: tuple[Binding, ...]
    profile_count: int
    #: The cache from which later contexts read kernels, and to which they add kernels; None if they use no cache. Engines
    #: of one library may share a cache.
    kernels: KernelCache | None

    def profile_shapes(self, name: str, profile: int) -> tuple[tuple[int, ...], ...]:
        """Min, opt and max of an input in an optimization profile."""
        ...

    def memory_bytes(self, profile: int) -> int:
        """The device memory for the activations of a context with `profile`, in bytes."""
        ...

    def create_context(self, profile: int, stream: int, options: ContextOptions) -> Context:
        """A new context with `profile`. It has no memory yet (`Context.use_memory`).

        Raises EngineError, for example if another context uses the profile and the engine does not allow sharing it."""
        ...

    def create_kernel_cache(self) -> KernelCache | None:
        """An empty cache, or None if the library does not compile kernels at run time."""
        ...


class KernelCache(Protocol):
    """Kernels that a library compiled for this GPU (``IRuntimeCache``)."""

    def load(self, data: bytes) -> bool:
        """Load the cache that an earlier process saved. If `data` is damaged, or is for another GPU or version, return
        False and load nothing."""
        ...

    def save(self) -> bytes:
        """All kernels that are in the cache now, as bytes for `load`."""
        ...


class Library(Protocol):
    """An installed TensorRT product: TensorRT or TensorRT-RTX, or one of the smaller runtimes of TensorRT."""

    name: str
    version: str
    #: Whether the library itself can capture CUDA graphs (`ContextOptions.library_graphs`).
    captures_graphs: bool

    def load_engine(self, plan: bytes | memoryview) -> Engine:
        """Deserialize `plan` on the current device without copying it. Raises EngineError."""
        ...

    def take_errors(self) -> str:
        """The errors that TensorRT logged on this thread since the last call of this method, one on each line.

        Errors that an EngineError has reported are left out."""
        ...
