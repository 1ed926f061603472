"""Run engines with TensorRT's runtime. The classes implement the protocols of `trtbuild.core.engines.execution`.

Rules
1. Most calls identify tensors by name (``set_input_shape``, ``execute_async_v3``). These calls are the same from 8.5 to 11
   and in TensorRT-RTX. `execution_table` has the calls that differ between versions.
2. A plan (a serialized engine) is deserialized from the caller's verified buffer, without a copy.
3. TensorRT's objects have pointers to one another that Python does not know. So an engine refers to its runtime here, and a
   context refers to its engine.
4. If TensorRT refuses a call, an EngineError with TensorRT's errors is raised. There are two exceptions. Errors of kernel
   caches are ignored, because these caches only save time. `set_shape`, `set_address` and `enqueue` return the library's
   result without a check, because every run calls them. If it is False, the caller reads the errors with `take_errors`.
5. ``infer_shapes`` and ``set_optimization_profile_async`` raise Python errors without the GIL, so SIGSEGV ends the process
   if such a call fails. (This was seen with 8.6. The published bindings of early releases of 10 have this fault, too.) So
   shapes come from ``get_tensor_shape``. ``set_optimization_profile_async`` is called only if `profile_sharing` finds that
   the context can use the profile.
6. A version-compatible plan may contain a lean runtime, which is host code. TensorRT loads such a plan only if
   ``engine_host_code_allowed`` of the runtime object is set. Plans with host code have a separate runtime object, so the
   object for other plans refuses host code.
7. Without a driver, or with one that is too old, the constructor of ``Runtime`` logs an error and returns an object without
   a runtime. A call of its methods, or its destructor, ends the process (seen with the lean and dispatch runtimes 10.16
   and 11.4). So such an object is neither used nor freed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from trtbuild.core.engines.execution import Binding, ContextOptions, KernelCache, OutputMemory
from trtbuild.core.packages.engine_libraries import EngineLibrary, LibraryName
from trtbuild.core.values.element_types import BY_TENSORRT
from trtbuild.errors import EngineError, ToolchainMissing
from trtbuild.toolchain.libraries.execution_table import ExecutionCalls, calls_for_plans
from trtbuild.toolchain.libraries.library import capture_log, last_errors, load
from trtbuild.toolchain.libraries.plugins import PluginIdentity, require_plugins
from trtbuild.toolchain.libraries.releases import version_numbers
from trtbuild.toolchain.libraries.runtimes import RUNTIMES, load_runtime
from trtbuild.toolchain.libraries.table import FLAVOURS
from trtbuild.toolchain.running.profile_sharing import ProfileUse

#: The errors of rule 7 contain this name.
_CREATE_RUNTIME = "createInferRuntime"
#: Keeps the objects of rule 7, because they must not be freed.
_OBJECTS_WITHOUT_RUNTIME: list[Any] = []


def load_library(library: EngineLibrary) -> TensorRT:
    """Load a library that runs engines. Equal requests get the same object.

    Raises ToolchainMissing if the library is not installed, if its module has another version than its distribution, or if
    it is too old to run engines by tensor names. Raises EngineError if it cannot run engines here.
    """
    runtime = RUNTIMES.get(library.name)
    toolchain = runtime.toolchain if runtime is not None else next(name for name in FLAVOURS if name == library.name)
    trt = load(toolchain) if runtime is None else load_runtime(library.name, library.version)
    distribution = FLAVOURS[toolchain].distribution if runtime is None else runtime.distribution
    loaded = str(trt.__version__)
    expected = (library.version, FLAVOURS[toolchain].library_versions.get(library.version, library.version))
    if version_numbers(loaded) not in [version_numbers(version) for version in expected]:
        raise ToolchainMissing(
            f"{library} is installed, but its module {trt.__name__} is {loaded}",
            hint=f"pip install --force-reinstall '{distribution}=={library.version}'",
        )
    calls = calls_for_plans(trt, toolchain, loaded, library.plan_version)
    if calls is None:
        raise ToolchainMissing(
            f"{library.name} {loaded} cannot run engines by tensor names", hint=f"pip install -U '{distribution}>=8.6'"
        )
    return _library(library.name, trt, calls, library.host_code)


@functools.lru_cache(maxsize=8)
def _library(name: LibraryName, trt: Any, calls: ExecutionCalls, host_code: bool) -> TensorRT:
    return TensorRT(name, trt, calls, host_code=host_code)


class TensorRT:
    """A `trtbuild.core.engines.execution.Library`."""

    def __init__(self, name: LibraryName, trt: Any, calls: ExecutionCalls, *, host_code: bool = False) -> None:
        self.name: str = name
        self.version = str(trt.__version__)
        self.captures_graphs = calls.runtime_compiler
        self._trt = trt
        self._calls = calls
        with capture_log(trt) as (logger, log):
            self._runtime = trt.Runtime(logger)
        failures = [text for severity, text in log.lines if severity != "warning" and _CREATE_RUNTIME in text]
        if failures:
            _OBJECTS_WITHOUT_RUNTIME.append(self._runtime)
            raise EngineError(
                f"{name} cannot run engines here: {_joined_errors(failures)}",
                hint="a GPU is needed, and a driver that is new enough for this library; nvidia-smi shows both",
            )
        if host_code:
            self._runtime.engine_host_code_allowed = True  # rule 6

    def require_plugins(self, plugins: Sequence[PluginIdentity], library: bytes | None, name: str) -> None:
        """Make plugins available to engines (`trtbuild.toolchain.libraries.plugins`). Raises PluginError."""
        with capture_log(self._trt) as (logger, _):
            require_plugins(self._trt, logger, plugins, library, name)

    def load_engine(self, plan: bytes | memoryview) -> TensorRTEngine:
        with capture_log(self._trt) as (_, log):
            engine = self._runtime.deserialize_cuda_engine(plan)
            if engine is None:
                raise EngineError(
                    f"{self.name} {self.version} refuses the engine: {_joined_errors(log.errors())}",
                    hint="an engine runs with the TensorRT version that built it, on the GPUs that it was built for",
                )
        return TensorRTEngine(self, self._trt, self._calls, engine)

    def take_errors(self) -> str:
        return "\n".join(last_errors())

    def __repr__(self) -> str:
        return f"{self.name} {self.version}"


class TensorRTEngine:
    """A `trtbuild.core.engines.execution.Engine`."""

    def __init__(self, library: TensorRT, trt: Any, calls: ExecutionCalls, engine: Any) -> None:
        self.kernels: KernelCache | None = None
        self.profile_count = int(engine.num_optimization_profiles)
        self._library = library  # rule 3
        self._trt = trt
        self._calls = calls
        self._engine = engine
        self._profiles = ProfileUse(calls, self.profile_count)
        self.bindings = tuple(self._binding(engine.get_tensor_name(k)) for k in range(engine.num_io_tensors))

    def _binding(self, name: str) -> Binding:
        engine, trt = self._engine, self._trt
        member = engine.get_tensor_dtype(name).name
        if member not in BY_TENSORRT:
            raise EngineError(f"{name} of the engine is {member}, which arrays do not have")
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        return Binding(
            name=name,
            is_input=is_input,
            dtype=BY_TENSORRT[member].name,
            shape=tuple(engine.get_tensor_shape(name)),
            on_host=on_host or (is_input and engine.is_shape_inference_io(name)),
        )

    def profile_shapes(self, name: str, profile: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(shape) for shape in self._engine.get_tensor_profile_shape(name, profile))

    def memory_bytes(self, profile: int) -> int:
        if self._calls.memory_size_of_profile is not None:
            return int(getattr(self._engine, self._calls.memory_size_of_profile)(profile))
        return int(getattr(self._engine, self._calls.memory_size))

    def create_context(self, profile: int, stream: int, options: ContextOptions) -> TensorRTContext:
        with capture_log(self._trt) as (_, log), self._profiles.lock:

            def create() -> Any:
                context = self._new_context(options)
                if context is None:
                    raise EngineError(f"no context for the engine: {_joined_errors(log.errors())}")
                return context

            context = create()
            if not self._profiles.can_use_profile(context, profile, create):
                raise EngineError(
                    f"optimization profile {profile} cannot be used: another context has it",
                    hint=f"{self._library} lets only engines that were built with profile sharing run in several threads "
                    "or on several streams at once",
                )
            if context.active_optimization_profile != profile:
                with suppress(RuntimeError):  # raised by some bindings for a refused profile
                    context.set_optimization_profile_async(profile, stream)
                if context.active_optimization_profile != profile:
                    raise EngineError(f"optimization profile {profile} cannot be used: {_joined_errors(log.errors())}")
            self._profiles.contexts.add(context)
        return TensorRTContext(self._library, self._trt, self._calls, self._engine, context)

    def _new_context(self, options: ContextOptions) -> Any:
        engine, trt = self._engine, self._trt
        if self._calls.context == "method":
            return engine.create_execution_context_without_device_memory()
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._calls.context == "strategy":
            return engine.create_execution_context(strategy)
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        config.dynamic_shapes_kernel_specialization_strategy = getattr(
            trt.DynamicShapesKernelSpecializationStrategy, options.specialization.upper()
        )
        graphs = "WHOLE_GRAPH_CAPTURE" if options.library_graphs else "DISABLED"
        config.cuda_graph_strategy = getattr(trt.CudaGraphStrategy, graphs)
        if isinstance(self.kernels, RuntimeCache) and not config.set_runtime_cache(self.kernels.cache):
            self.kernels = None  # the cache only saves time
        return engine.create_execution_context(config)

    def create_kernel_cache(self) -> RuntimeCache | None:
        if not self._calls.runtime_compiler:
            return None
        with capture_log(self._trt):
            config = self._engine.create_runtime_config()
            return RuntimeCache(self._trt, (self._engine, config), config.create_runtime_cache())


class RuntimeCache:
    """TensorRT-RTX's ``IRuntimeCache``, a `trtbuild.core.engines.execution.KernelCache`."""

    def __init__(self, trt: Any, owners: tuple[Any, ...], cache: Any) -> None:
        self.cache = cache
        self._trt = trt
        self._owners = owners  # must outlive the cache

    def load(self, data: bytes) -> bool:
        with capture_log(self._trt):
            return bool(self.cache.deserialize(data))

    def save(self) -> bytes:
        with capture_log(self._trt):
            return bytes(self.cache.serialize())


class TensorRTContext:
    """A `trtbuild.core.engines.execution.Context`."""

    def __init__(self, library: TensorRT, trt: Any, calls: ExecutionCalls, engine: Any, context: Any) -> None:
        self.set_shape: Callable[[str, tuple[int, ...]], bool] = context.set_input_shape
        self.set_address: Callable[[str, int], bool] = context.set_tensor_address
        self.enqueue: Callable[[int], bool] = context.execute_async_v3
        self._library = library
        self._trt = trt
        self._calls = calls
        self._engine = engine
        self._context = context
        self._allocators: list[Any] = []  # TensorRT has only pointers to them
        self._profiler: Any = None

    def shape(self, name: str) -> tuple[int, ...]:
        try:
            return tuple(self._context.get_tensor_shape(name))
        except ValueError as error:  # the rank is -1, and no Python sequence has this length
            raise EngineError(f"{name} has no shape: {_joined_errors(last_errors())}") from error

    def use_memory(self, address: int, size_bytes: int) -> None:
        # After an error, TensorRT returns normally and continues to use the old memory. Only the log shows the error.
        with capture_log(self._trt) as (_, log):
            if self._calls.memory == "sized":
                self._context.set_device_memory(address, size_bytes)
            else:
                self._context.device_memory = address
            if log.errors():
                raise EngineError(f"{self._library} refuses its memory: {_joined_errors(log.errors())}")

    def set_output_memory(self, name: str, memory: OutputMemory) -> None:
        allocator = _output_allocator(self._trt)(memory)
        if not self._context.set_output_allocator(name, allocator):
            raise EngineError(f"output {name} cannot have an allocator: {_joined_errors(last_errors())}")
        self._allocators.append(allocator)

    def time_layers(self, report: Callable[[str, float], None] | None) -> None:
        if report is None and self._profiler is None:
            return
        if self._profiler is None:
            # A context's profiler cannot be removed (in 8.6, IExecutionContext.profiler cannot be None). So a context gets
            # one profiler, whose `report` is replaced.
            self._profiler = _profiler(self._trt)()
            self._context.profiler = self._profiler
        self._profiler.report = report


@functools.cache
def _output_allocator(trt: Any) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self, memory: OutputMemory) -> None:
            trt.IOutputAllocator.__init__(self)
            self._memory = memory

        def reallocate_output(self, name: str, _: int, size: int, alignment: int) -> int:
            return self._memory.allocate(name, size, alignment)

        def reallocate_output_async(self, name: str, _: int, size: int, alignment: int, __: int) -> int:
            return self._memory.allocate(name, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            self._memory.set_final_shape(name, tuple(shape))

    return Allocator


@functools.cache
def _profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.report: Callable[[str, float], None] | None = None

        def report_layer_time(self, layer: str, milliseconds: float) -> None:
            if self.report is not None:
                self.report(layer, milliseconds)

    return Profiler


def _joined_errors(errors: Sequence[str]) -> str:
    return "; ".join(errors) if errors else "no reason was given"
