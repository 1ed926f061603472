"""Messages about engines that cannot be loaded or run, because of an input, the plan, a library or the machine.

Each function below causes one error. Its case in the catalogue has the same name, with spaces. `rig` has fakes of TensorRT
and of a GPU, with small sample engines such as ``affine``. The method `adopt` wraps a caller's array for an engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.core.packages.test_engine_libraries import COMPATIBLE, EXACT, WITHOUT_LEAN
from tests.messages.catalogue import Case, check_or_write, read
from tests.runtime import fake_tensorrt
from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.rigs import Rig, partition, rig  # noqa: F401 - a fixture
from trtbuild.core.packages.engine_libraries import EngineLibrary
from trtbuild.core.packages.package_index import PackageIndex, PackedTarget
from trtbuild.errors import TrtbuildError
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.memory.arrays import DeviceArray
from trtbuild.runtime.memory.choosing import choose_memory
from trtbuild.runtime.memory.cuda_memory import CudaMemory
from trtbuild.runtime.memory.tensor_kinds import materialize, require_memory
from trtbuild.runtime.packages.choice import Machine, choose_target
from trtbuild.toolchain.running.execution import TensorRT, load_library

Patch = pytest.MonkeyPatch
CASES: dict[str, Callable[[Rig, Patch], Any]] = {}


def case_function(function: Callable[[Rig, Patch], Any]) -> None:
    CASES[function.__name__.replace("_", " ")] = function


def _run(rig: Rig, sample: str, *values: DeviceArray, sizes: tuple[int, ...]) -> Any:  # noqa: F811
    return rig.part(sample)(values, rig.call(*sizes, stream=rig.stream()))


@case_function
def an_array_in_host_memory(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return rig.memory.adopt(np.zeros((2, 4), np.float32), "input 'image'", 0)


@case_function
def a_list_instead_of_an_array(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return rig.memory.adopt([[1.0]], "input 'image'", 0)


@case_function
def an_array_of_another_gpu(rig: Rig, _: Patch) -> Any:  # noqa: F811
    rig.gpu.devices = 2
    other = CudaMemory(FakeDriver(rig.gpu), 1)
    return other.adopt(rig.values(2, 4, stream=0)[0], "input 'image'", 0)


@case_function
def a_sparse_tensor(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return materialize(torch.ones(2).to_sparse(), "input 'image'")


@case_function
def a_nested_tensor(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return materialize(torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "input 'image'")


@case_function
def a_tensor_without_memory(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return require_memory(torch._efficientzerotensor((2,)), "input 'image'")


@case_function
def another_element_type(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return _run(rig, "affine", rig.array(np.zeros((2, 4), np.int32), 0), sizes=(2,))


@case_function
def a_size_that_differs_from_the_package(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return _run(rig, "affine", rig.values(3, 4, stream=0)[0], sizes=(5,))


@case_function
def a_shape_beyond_the_profile(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return _run(rig, "affine", rig.values(9, 4, stream=0)[0], sizes=(9,))


@case_function
def shapes_that_do_not_fit_together(rig: Rig, _: Patch) -> Any:  # noqa: F811
    values = rig.values(2, 3, stream=0)[0], rig.values(3, 2, stream=0)[0]
    return _run(rig, "pair", *values, sizes=(2, 3))


@case_function
def an_input_whose_values_are_shapes(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return rig.part("shaped")


@case_function
def an_engine_of_another_partition(rig: Rig, _: Patch) -> Any:  # noqa: F811
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("kinds"))
    return EnginePart(rig.library, engine, partition("affine"), rig.workspaces)


@case_function
def bytes_that_are_not_a_plan(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return rig.library.load_engine(b"not a plan")


@case_function
def a_profile_that_contexts_cannot_share(rig: Rig, _: Patch) -> Any:  # noqa: F811
    part, (value, _data) = rig.part("unshared"), rig.values(2, 4, stream=0)
    for stream in (rig.stream(), rig.stream()):
        part([value], rig.call(2, stream=stream))


@case_function
def a_run_that_tensorrt_refuses(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    def refuse(self: Any, stream: int) -> bool:
        rig.trt.log_messages([("ERROR", "[executionContext.cpp::enqueueInternal::795] Error Code 1: Cuda Runtime")])
        return False

    patch.setattr(fake_tensorrt._Context, "_execute", refuse)
    return _run(rig, "affine", rig.values(2, 4, stream=0)[0], sizes=(2,))


@case_function
def a_missing_gpu(rig: Rig, _: Patch) -> Any:  # noqa: F811
    return CudaMemory(FakeDriver(FakeGpu()), 1)


@case_function
def neither_torch_nor_cuda_python(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    patch.setitem(sys.modules, "torch", None)
    patch.setitem(sys.modules, "cuda", None)
    return choose_memory(0)


@case_function
def another_version_of_tensorrt(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    patch.setitem(sys.modules, "tensorrt", rig.trt)
    return load_library(EngineLibrary("tensorrt", "10.3.0", "10.3.0", False))


@case_function
def only_the_lean_runtime_for_plans_that_are_not_version_compatible(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    return _choose(EXACT, tensorrt_lean="10.16.1.11")


@case_function
def nothing_that_runs_version_compatible_plans(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    return _choose(COMPATIBLE)


@case_function
def a_dispatch_runtime_that_is_too_old(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    return _choose(COMPATIBLE, tensorrt_dispatch="10.2.0")


@case_function
def a_plan_without_the_lean_runtime(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    return _choose(WITHOUT_LEAN, tensorrt_dispatch="10.16.1.11")


def _choose(target: PackedTarget, **versions: str) -> Any:
    machine = Machine("linux-x86_64", 90, "GPU 0", versions)
    return choose_target(PackageIndex("vit", (), (), {}, (), (), "float32", {"hopper": target}, False, {}, {}), machine)


@case_function
def a_lean_runtime_that_cannot_be_imported(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    patch.setitem(sys.modules, "tensorrt_lean_bindings", None)
    patch.setitem(sys.modules, "tensorrt_lean", None)
    return load_library(EngineLibrary("tensorrt_lean", "10.16.1.11", "10.3.0", True))


@case_function
def a_driver_that_is_too_old(rig: Rig, patch: Patch) -> Any:  # noqa: F811
    text = "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)"
    patch.setattr(rig.trt, "Runtime", lambda logger: logger.log(rig.trt.ILogger.ERROR, text))
    return TensorRT("tensorrt_dispatch", rig.trt, rig.library._calls, host_code=True)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in read("engines")])
def test_messages_match_the_catalogue(case: Case, rig: Rig, monkeypatch: Patch) -> None:  # noqa: F811
    with pytest.raises(TrtbuildError) as caught:
        CASES[case.name](rig, monkeypatch)
    check_or_write("engines", case, f"{type(caught.value).__name__}\n{caught.value}")


def test_every_case_is_in_the_catalogue() -> None:
    assert {case.name for case in read("engines")} == set(CASES)
