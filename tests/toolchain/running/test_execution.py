"""The adapter of TensorRT's runtime, with the installed library. Fakes replace the contexts, which need a GPU."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any

import pytest
import tensorrt_rtx

from tests.runtime.rigs import Rig, rig
from trtbuild.core.engines.execution import ContextOptions
from trtbuild.core.packages.engine_libraries import EngineLibrary
from trtbuild.core.values.element_types import BY_TENSORRT
from trtbuild.errors import EngineError, ToolchainMissing
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.running.execution import TensorRTEngine, load_library

__all__ = ["rig"]

RTX = EngineLibrary("tensorrt-rtx", tensorrt_rtx.__version__, tensorrt_rtx.__version__, host_code=False)


def test_loads_the_installed_library_once() -> None:
    library = load_library(RTX)
    assert library is load_library(RTX)
    assert library.name == "tensorrt-rtx" and library.version == tensorrt_rtx.__version__
    assert library.captures_graphs


def test_host_code_is_allowed_only_for_plans_with_host_code() -> None:
    """TensorRT loads host code (a lean runtime in a plan) only if `engine_host_code_allowed` is set. Other plans have a
    separate `Runtime` object, on which this property stays unset."""
    with_host_code = load_library(replace(RTX, host_code=True))
    assert with_host_code._runtime.engine_host_code_allowed
    assert not load_library(RTX)._runtime.engine_host_code_allowed


def test_rejects_a_module_of_another_version_than_its_distribution() -> None:
    with pytest.raises(
        ToolchainMissing, match=r"tensorrt-rtx 1\.4\.0 is installed, but its module tensorrt_rtx is 1\.7"
    ):
        load_library(replace(RTX, version="1.4.0"))


def test_rejects_a_library_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    old: Any = types.ModuleType("tensorrt")
    old.__version__ = "8.4.3"
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(ToolchainMissing, match=r"tensorrt 8\.4\.3 cannot run engines by tensor names"):
        load_library(EngineLibrary("tensorrt", "8.4.3", "8.4.3", host_code=False))


@pytest.mark.parametrize("plan", [b"", b"no plan at all" * 100])
def test_rejects_an_invalid_plan_with_the_librarys_message(plan: bytes) -> None:
    with pytest.raises(EngineError, match="refuses the engine: ") as caught:
        load_library(RTX).load_engine(plan)
    assert "no reason was given" not in caught.value.text


@pytest.mark.parametrize(
    ("toolchain", "version", "context", "memory", "shared_profiles"),
    [
        ("tensorrt", "8.6.1", "method", "property", False),
        ("tensorrt", "9.3.0", "method", "property", True),
        ("tensorrt", "10.0.1", "strategy", "property", True),
        ("tensorrt", "10.16.0.72", "strategy", "sized", True),
        ("tensorrt", "11.4.0", "strategy", "sized", True),
        ("tensorrt-rtx", "1.7.1.116", "configuration", "sized", True),
    ],
)
def test_the_calls_of_each_version(
    toolchain: Any, version: str, context: str, memory: str, shared_profiles: bool
) -> None:
    calls = calls_of(toolchain, version)
    assert calls is not None
    assert (calls.context, calls.memory, calls.shared_profiles) == (context, memory, shared_profiles)


def test_tensorrt_rtx_has_every_name_that_the_adapter_uses() -> None:
    calls = calls_of("tensorrt-rtx", tensorrt_rtx.__version__)
    assert calls is not None and calls.memory_size_of_profile is not None
    used: dict[Any, tuple[str, ...]] = {
        tensorrt_rtx.Runtime: ("deserialize_cuda_engine",),
        tensorrt_rtx.ICudaEngine: (
            calls.memory_size,
            calls.memory_size_of_profile,
            "create_execution_context",
            "create_runtime_config",
            "get_tensor_dtype",
            "get_tensor_location",
            "get_tensor_mode",
            "get_tensor_name",
            "get_tensor_profile_shape",
            "get_tensor_shape",
            "is_shape_inference_io",
            "num_io_tensors",
            "num_optimization_profiles",
        ),
        tensorrt_rtx.IExecutionContext: (
            "execute_async_v3",
            "get_tensor_shape",
            "active_optimization_profile",
            "profiler",
            "set_device_memory",
            "set_input_shape",
            "set_optimization_profile_async",
            "set_output_allocator",
            "set_tensor_address",
        ),
        tensorrt_rtx.IRuntimeConfig: (
            "create_runtime_cache",
            "cuda_graph_strategy",
            "dynamic_shapes_kernel_specialization_strategy",
            "set_execution_context_allocation_strategy",
            "set_runtime_cache",
        ),
        tensorrt_rtx.IRuntimeCache: ("deserialize", "serialize"),
        tensorrt_rtx.ExecutionContextAllocationStrategy: ("USER_MANAGED",),
        tensorrt_rtx.DynamicShapesKernelSpecializationStrategy: ("LAZY", "EAGER", "NONE"),
        tensorrt_rtx.CudaGraphStrategy: ("DISABLED", "WHOLE_GRAPH_CAPTURE"),
    }
    missing = [
        f"{owner.__name__}.{name}" for owner, names in used.items() for name in names if not hasattr(owner, name)
    ]
    assert not missing


def test_contexts_can_be_referenced_weakly() -> None:
    """The adapter asks all contexts for their profiles, but must not keep them alive."""
    assert tensorrt_rtx.IExecutionContext.__weakrefoffset__ > 0
    assert tensorrt_rtx.IExecutionContext.__hash__ is object.__hash__


def test_the_library_has_every_element_type_of_arrays() -> None:
    assert set(BY_TENSORRT) <= set(tensorrt_rtx.DataType.__members__)


class FakeConfig:
    """An ``IRuntimeConfig`` that records its settings."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "settings":
            self.settings[name] = value
        object.__setattr__(self, name, value)

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.settings["strategy"] = strategy

    def set_runtime_cache(self, cache: Any) -> bool:
        self.settings["cache"] = cache
        return True

    def create_runtime_cache(self) -> Any:
        return FakeCache()


class FakeCache:
    """An ``IRuntimeCache`` that accepts only data that begins with "good"."""

    def __init__(self) -> None:
        self.content = b""

    def deserialize(self, data: bytes) -> bool:
        self.content = data if data.startswith(b"good") else self.content
        return data.startswith(b"good")

    def serialize(self) -> bytes:
        return self.content


class FakeRtxEngine:
    """An ``ICudaEngine`` of TensorRT-RTX without tensors."""

    num_optimization_profiles, num_io_tensors = 3, 0
    rejected_profile = 2

    def __init__(self) -> None:
        self.configs: list[FakeConfig] = []
        #: (profile, stream) of each call that sets a profile.
        self.profiles: list[tuple[int, int]] = []
        #: (address, size) of a context's memory.
        self.memory = (0, 0)

    def create_runtime_config(self) -> FakeConfig:
        self.configs.append(FakeConfig())
        return self.configs[-1]

    def create_execution_context(self, config: FakeConfig) -> Any:
        engine = self

        class Context:
            set_input_shape = set_tensor_address = execute_async_v3 = None
            active_optimization_profile = 0

            def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
                engine.profiles.append((profile, stream))
                if profile == engine.rejected_profile:
                    raise RuntimeError("Error in set optimization profile async.")
                self.active_optimization_profile = profile
                return True

            def set_device_memory(self, address: int, size: int) -> None:
                engine.memory = (address, size)

        return Context()

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return 1000 + profile


def test_configures_a_context_of_tensorrt_rtx() -> None:
    library, fake = load_library(RTX), FakeRtxEngine()
    calls = calls_of("tensorrt-rtx", library.version)
    assert calls is not None
    engine = TensorRTEngine(library, tensorrt_rtx, calls, fake)
    cache = engine.create_kernel_cache()
    assert cache is not None and cache.load(b"good kernels") and not cache.load(b"bad")
    assert cache.save() == b"good kernels"
    engine.kernels = cache
    stream = 77
    context = engine.create_context(1, stream, ContextOptions("eager", library_graphs=True))
    settings = fake.configs[-1].settings
    assert settings["strategy"] == tensorrt_rtx.ExecutionContextAllocationStrategy.USER_MANAGED
    assert settings["cache"] is cache.cache
    assert (
        settings["dynamic_shapes_kernel_specialization_strategy"]
        == tensorrt_rtx.DynamicShapesKernelSpecializationStrategy.EAGER
    )
    assert settings["cuda_graph_strategy"] == tensorrt_rtx.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    assert fake.profiles == [(1, stream)]
    context.use_memory(4096, 1001)
    assert fake.memory == (4096, 1001) and engine.memory_bytes(1) == 1001
    with pytest.raises(EngineError, match="optimization profile 2 cannot be used"):
        engine.create_context(2, stream, ContextOptions())


def test_raises_if_tensorrt_rejects_the_memory(rig: Rig) -> None:
    with rig.memory.on_device():
        context = rig.library.load_engine(rig.trt.plan("wide")).create_context(0, rig.stream(), ContextOptions())
        for address in (0, 4096 + 256):  # NULL, and an address that is not aligned to 512 bytes
            with pytest.raises(EngineError, match=r"refuses its memory: .*setDeviceMemory: "):
                context.use_memory(address, 1 << 20)
        context.use_memory(4096, 1 << 20)


def test_the_error_for_a_tensor_without_a_shape_has_tensorrts_message(rig: Rig) -> None:
    with rig.memory.on_device():
        context = rig.library.load_engine(rig.trt.plan("affine")).create_context(0, rig.stream(), ContextOptions())
        with pytest.raises(EngineError, match=r"i7 has no shape: .*invalid tensor name: i7"):
            context.shape("i7")
