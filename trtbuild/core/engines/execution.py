"""What running an engine needs of TensorRT, as protocols and plain values: a few calls, and nothing of any version.

`trtbuild.toolchain.running.execution` has them for real libraries. Whoever uses them keeps these rules, which are
TensorRT's:

Rules
1. One context is used by one thread at a time, and its work is enqueued on one stream. Engines may be shared by threads:
   creating a context is safe at any time (TensorRT developer guide, "Threading").
2. All calls are made while the engine's device is the current one of the calling thread.
3. Shapes are set before addresses are used: `Context.set_shape` for every input. Each is within the profile's range
   (`Engine.profile_shapes`): TensorRT takes others, too, and only running them fails.
4. What `use_memory` was given, and every address, stays valid until the stream has passed the work that was enqueued.
5. `False` from a call is a refusal, and `Library.words` has TensorRT's reason. Nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

#: How TensorRT-RTX makes kernels for a new shape: a general kernel first and a special one in the background, a special
#: one at once, or general ones only (``DynamicShapesKernelSpecializationStrategy``). TensorRT has no such choice.
Specialization = Literal["lazy", "eager", "none"]


@dataclass(frozen=True)
class Binding:
    """One input or output of an engine. A size of -1 is dynamic; `dtype` is torch's name without the prefix."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    #: Whether TensorRT reads or writes it in host memory (``TensorLocation.HOST``), or needs the values of the input to
    #: know shapes (``is_shape_inference_io``).
    on_host: bool = False


@dataclass(frozen=True)
class ContextOptions:
    """How a context runs. `library_graphs`: the library captures CUDA graphs itself, where it can."""

    specialization: Specialization = "lazy"
    library_graphs: bool = False


class OutputMemory(Protocol):
    """Where outputs go whose size only running tells (``IOutputAllocator``)."""

    def allocate(self, name: str, size_bytes: int, alignment: int) -> int:
        """The address of at least `size_bytes` bytes for output `name`; never 0."""
        ...

    def settle(self, name: str, shape: tuple[int, ...]) -> None:
        """The shape that output `name` has; called before the enqueueing call returns."""
        ...


class Context(Protocol):
    """An ``IExecutionContext``. The four attributes are called for every run, so they are the library's own functions."""

    #: (input, shape) → whether it was taken.
    set_shape: Callable[[str, tuple[int, ...]], bool]
    #: (input or output, address) → whether it was taken.
    set_address: Callable[[str, int], bool]
    #: (stream) → whether the work was enqueued.
    enqueue: Callable[[int], bool]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `name` under the input shapes; -1 where only running tells it, or none follows from them.

        Raises EngineError where there is none."""
        ...

    def use_memory(self, address: int, size_bytes: int) -> None:
        """The device memory for activations, aligned to 512 bytes, as large as `Engine.memory_bytes` says; never null.

        Raises EngineError where TensorRT does not take it."""
        ...

    def send_output(self, name: str, memory: OutputMemory) -> None:
        """Let `memory` allocate output `name`. Raises EngineError."""
        ...

    def time_layers(self, report: Callable[[str, float], None] | None) -> None:
        """Report (layer, milliseconds) for each layer of each later run, which then waits for the GPU. None: no more."""
        ...


class Engine(Protocol):
    """An ``ICudaEngine``, of one device."""

    bindings: tuple[Binding, ...]
    profile_count: int
    #: Where contexts that are made from now on find and leave kernels; may be that of another engine of the library.
    kernels: KernelCache | None

    def profile_shapes(self, name: str, profile: int) -> tuple[tuple[int, ...], ...]:
        """Min, opt and max of an input in an optimization profile."""
        ...

    def memory_bytes(self, profile: int) -> int:
        """How much device memory the activations of a context need under `profile`, in bytes."""
        ...

    def create_context(self, profile: int, stream: int, options: ContextOptions) -> Context:
        """A new context that has `profile` and no memory yet.

        Raises EngineError, also where another context has the profile and the engine was not built to share it."""
        ...

    def create_kernel_cache(self) -> KernelCache | None:
        """An empty cache, or None where the library compiles nothing at run time."""
        ...


class KernelCache(Protocol):
    """Kernels that a library compiled for this GPU (``IRuntimeCache``)."""

    def load(self, data: bytes) -> bool:
        """Take what an earlier process left. False: it is not for this GPU or version, or damaged; nothing changed."""
        ...

    def save(self) -> bytes:
        """Everything that is known by now."""
        ...


class Library(Protocol):
    """A TensorRT flavour of one version."""

    name: str
    version: str
    #: Whether it can capture CUDA graphs by itself (`ContextOptions.library_graphs`).
    captures_graphs: bool

    def load_engine(self, plan: bytes | memoryview) -> Engine:
        """Deserialize `plan` on the current device, from these bytes and no copy of them. Raises EngineError."""
        ...

    def words(self) -> str:
        """What TensorRT said on this thread since the last call: its errors, one a line, or the empty string."""
        ...
