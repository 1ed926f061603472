"""The adapter of TensorRT's runtime, with the dispatch runtime, which is small and can be imported without a driver."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.core.packages.engine_libraries import EngineLibrary
from trtbuild.errors import EngineError
from trtbuild.toolchain.libraries.devices import device_sms
from trtbuild.toolchain.libraries.execution_table import ExecutionCalls, calls_for_plans, calls_of
from trtbuild.toolchain.libraries.runtimes import installed_runtime, load_runtime
from trtbuild.toolchain.running.execution import load_library

dispatch: Any = pytest.importorskip("tensorrt_dispatch_bindings", reason="pip install 'trtbuild[dev]'")
VERSION = str(dispatch.__version__)


def test_the_distribution_has_the_version_of_its_module() -> None:
    version = installed_runtime("tensorrt_dispatch")
    assert version == VERSION
    assert load_runtime("tensorrt_dispatch", version) is dispatch


@pytest.mark.skipif(bool(device_sms()), reason="this machine has a GPU")
@pytest.mark.parametrize("host_code", [False, True])
def test_without_a_driver_the_library_is_refused_before_a_call_ends_the_process(host_code: bool) -> None:
    """Without a driver, a use of the object that `Runtime` returns would end the process."""
    with pytest.raises(EngineError, match=r"^tensorrt_dispatch cannot run engines here: createInferRuntime.*CUDA init"):
        load_library(EngineLibrary("tensorrt_dispatch", VERSION, "10.3.0", host_code=host_code))


def test_the_module_has_every_name_that_the_adapter_uses() -> None:
    calls = calls_of("tensorrt", VERSION)
    assert calls is not None and calls.memory_size_of_profile is not None
    used: dict[Any, tuple[str, ...]] = {
        dispatch.Runtime: ("deserialize_cuda_engine", "engine_host_code_allowed"),
        dispatch.ICudaEngine: (
            calls.memory_size,
            calls.memory_size_of_profile,
            "create_execution_context",
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
        dispatch.IExecutionContext: (
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
        dispatch.ExecutionContextAllocationStrategy: ("USER_MANAGED",),
        dispatch.TensorIOMode: ("INPUT", "OUTPUT"),
        dispatch.TensorLocation: ("HOST", "DEVICE"),
        dispatch: ("ILogger", "IOutputAllocator", "IProfiler"),
    }
    missing = [
        f"{owner.__name__}.{name}" for owner, names in used.items() for name in names if not hasattr(owner, name)
    ]
    assert missing == []


def test_plans_of_an_older_version_run_with_calls_that_the_installed_library_has() -> None:
    newest = calls_of("tensorrt", VERSION)
    assert newest is not None
    assert calls_for_plans(dispatch, "tensorrt", VERSION, "10.3.0") == newest
    # The calls of 10.0 need `device_memory_size`, which 11 lacks. So plans of 10.0 run with the calls of 11.
    assert not hasattr(dispatch.ICudaEngine, "device_memory_size")
    assert calls_for_plans(dispatch, "tensorrt", VERSION, "10.0.1") == newest


def test_plans_of_8_6_run_with_the_calls_of_8_6_if_the_library_has_them() -> None:
    class OlderEngine:
        device_memory_size = 0
        create_execution_context_without_device_memory = None

    class OlderModule:
        ICudaEngine = OlderEngine
        IExecutionContext = dispatch.IExecutionContext

    expected = ExecutionCalls("method", "property", "device_memory_size", None, shared_profiles=False)
    assert calls_for_plans(OlderModule, "tensorrt", "10.16.1.11", "8.6.0") == expected
    del OlderEngine.device_memory_size
    newer_calls = calls_for_plans(OlderModule, "tensorrt", "10.16.1.11", "8.6.0")
    assert newer_calls is not None
    assert newer_calls.context == "strategy" and not newer_calls.shared_profiles
