"""The calls with which each TensorRT version runs engines, in one table.

Rules
1. The row of a version is the newest row that is not newer than the version.
2. Each row cites its source. 8.6.0 was run on an H200. The names of TensorRT-RTX 1.7.1 were read from the library, without
   a run on a GPU. The other rows are from NVIDIA's API references and the open bindings (pyEngine.cpp).
3. A version-compatible plan may run with a later version than the one that built it. Only the calls that both versions
   have are then supported (documentation of 10.16.1, "Version Compatibility"). So the row of the older version is used, if
   the later version still has its calls. In any case, contexts share profiles as in the older version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtbuild.core.model.spec import ToolchainName


@dataclass(frozen=True)
class ExecutionCalls:
    """The calls with which one version runs engines."""

    #: The way to create an execution context without device memory: by a special method, by an allocation strategy, or by a
    #: runtime configuration with this strategy.
    context: Literal["method", "strategy", "configuration"]
    #: The way to set a context's memory: the property `device_memory`, or ``set_device_memory(address, size)``.
    memory: Literal["property", "sized"]
    #: The name of the engine's property with the size of a context's memory, in bytes.
    memory_size: str
    #: The name of the engine's method with this size for one profile, or None if there is no such method.
    memory_size_of_profile: str | None
    #: Whether several contexts may use one optimization profile at the same time. Before 9, this is possible only if the
    #: engine was built with PreviewFeature.PROFILE_SHARING_0806.
    shared_profiles: bool
    #: Whether the library compiles kernels at run time, can store them (``IRuntimeCache``), and captures CUDA graphs.
    runtime_compiler: bool = False


#: Toolchain → rows: (first version of the row, its calls). The newest row is first.
_TABLE: Mapping[ToolchainName, tuple[tuple[tuple[int, ...], ExecutionCalls], ...]] = {
    "tensorrt-rtx": (
        # The names of 1.7.1. The reference of 1.0 has create_runtime_config (IRuntimeConfig).
        (
            (1,),
            ExecutionCalls(
                "configuration",
                "sized",
                "device_memory_size_v2",
                "get_device_memory_size_for_profile_v2",
                shared_profiles=True,
                runtime_compiler=True,
            ),
        ),
    ),
    "tensorrt": (
        # Release notes of 10.1: the v2 sizes have 64 bits, and set_device_memory takes a size.
        (
            (10, 1),
            ExecutionCalls(
                "strategy",
                "sized",
                "device_memory_size_v2",
                "get_device_memory_size_for_profile_v2",
                shared_profiles=True,
            ),
        ),
        # 10.0 has ExecutionContextAllocationStrategy and get_device_memory_size_for_profile (API reference).
        (
            (10,),
            ExecutionCalls(
                "strategy",
                "property",
                "device_memory_size",
                "get_device_memory_size_for_profile",
                shared_profiles=True,
            ),
        ),
        # Contexts share profiles from 9.0 on (PROFILE_SHARING_0806 in 8.6.1: "will become the default in 9.0").
        ((9,), ExecutionCalls("method", "property", "device_memory_size", None, shared_profiles=True)),
        # 8.5 is the first version with tensor names. Source: the bindings of 8.6.1.
        ((8, 5), ExecutionCalls("method", "property", "device_memory_size", None, shared_profiles=False)),
    ),
}


def calls_of(toolchain: ToolchainName, version: str) -> ExecutionCalls | None:
    """Return the row of `version`, or None if the version is older than all rows."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return next((calls for first, calls in _TABLE[toolchain] if numbers >= first), None)


def calls_for_plans(trt: Any, toolchain: ToolchainName, version: str, plan_version: str) -> ExecutionCalls | None:
    """Return the calls with which `version` of the library `trt` runs plans of `plan_version` (rule 3). None if `version`
    is older than all rows."""
    calls, plan_calls = calls_of(toolchain, version), calls_of(toolchain, plan_version)
    if calls is None or plan_calls is None or calls == plan_calls:
        return calls
    if _has_calls(trt, plan_calls):
        return plan_calls
    return replace(calls, shared_profiles=plan_calls.shared_profiles)


def _has_calls(trt: Any, calls: ExecutionCalls) -> bool:
    engine_names = [calls.memory_size]
    if calls.memory_size_of_profile is not None:
        engine_names.append(calls.memory_size_of_profile)
    if calls.context == "method":
        engine_names.append("create_execution_context_without_device_memory")
    context_name = "device_memory" if calls.memory == "property" else "set_device_memory"
    return all(hasattr(trt.ICudaEngine, name) for name in engine_names) and hasattr(trt.IExecutionContext, context_name)
