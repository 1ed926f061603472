"""The calls of TensorRT for one run, rejected inputs and outputs, and failed runs. Fakes replace TensorRT 8.6 and CUDA."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.runtime import fake_tensorrt
from tests.runtime.fake_cuda import CUresult
from tests.runtime.fake_tensorrt.samples import WIDTH
from tests.runtime.rigs import Rig, partition
from trtbuild.core.partition.partitions import TensorType
from trtbuild.errors import CallRefused, EngineError
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.engines.measured import MeasuredOutput
from trtbuild.runtime.memory.arrays import DeviceArray


@pytest.mark.parametrize(("rows", "profile"), [(9, 0), (7, 1), (33, 1)])
def test_rejects_a_shape_outside_of_the_profile_before_it_calls_tensorrt(rig: Rig, rows: int, profile: int) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(rows, 4, stream=stream)
    with pytest.raises(
        CallRefused, match=rf"input 0 of affine \(input:0\) has shape \[{rows}, 4\], but profile {profile}"
    ):
        part([value], rig.call(rows, stream=stream, profile=profile))
    assert "set_input_shape" not in rig.trt.calls
    value, data = rig.values(3, 4, stream=stream)
    np.testing.assert_array_equal(part([value], rig.call(3, stream=stream))[0].numpy(), data * 2 + 1)


def test_rejects_another_element_type(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    with pytest.raises(CallRefused, match="is int32, but its engine takes float32"):
        part([rig.array(np.zeros((2, 4), np.int32), stream)], rig.call(2, stream=stream))


def test_rejects_incompatible_shapes(rig: Rig) -> None:
    part, stream = rig.part("pair"), rig.stream()
    first, _ = rig.values(2, 3, stream=stream)
    second, _ = rig.values(3, 2, stream=stream)
    with pytest.raises(EngineError, match=r"the engine of pair: o0 has no shape: .* incompatible dimensions: 2 != 3"):
        part([first, second], rig.call(2, 3, stream=stream))
    assert not {"execute_async_v3", "infer_shapes"} & rig.trt.calls.keys()  # infer_shapes would end the process


def test_rejects_output_sizes_that_differ_from_the_package(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(3, 4, stream=stream)
    with pytest.raises(EngineError, match=r"gives o0 the shape \[3, 4\], but the package has \[5, 4\]"):
        part([value], rig.call(5, stream=stream))


def test_rejects_an_unknown_output_size_where_the_package_has_a_known_one(rig: Rig) -> None:
    """The package has a size that follows from the inputs, but in the engine this size depends on data."""
    known = dataclasses.replace(partition("nonzero"), outputs=(TensorType("int32", (1, ["sym", 0])),))
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("nonzero"))
        part, stream = EnginePart(rig.library, engine, known, rig.workspaces), rig.stream()
        with pytest.raises(EngineError, match=r"gives o0 the shape \[1, -1\], but the package has \[1, 2\]"):
            part([rig.array(np.float32([1, 2]), stream)], rig.call(2, stream=stream))


def test_rejects_an_output_of_unknown_size_with_a_wrong_shape(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    set_final_shape = MeasuredOutput.set_final_shape
    monkeypatch.setattr(
        MeasuredOutput, "set_final_shape", lambda self, name, shape: set_final_shape(self, name, shape[::-1])
    )
    part, stream = rig.part("nonzero"), rig.stream()
    with pytest.raises(EngineError, match=r"gives o0 the shape \[2, 1\], but the package has \[1, None\]"):
        part([rig.array(np.float32([0, 5, 0, 7]), stream)], rig.call(4, stream=stream))


def test_a_failed_run_raises_tensorrts_message_and_the_next_run_works(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    rejected: list[int] = []

    def refuse(self: Any, stream: int) -> bool:
        rejected.append(stream)
        rig.trt.log_messages([("ERROR", "the GPU is on fire")])
        return False

    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt._Context, "_execute", refuse)
        with pytest.raises(EngineError, match=r"tensorrt refuses to run \(affine\): the GPU is on fire"):
            part([value], rig.call(2, stream=stream))
    assert rejected
    calls_before = rig.trt.calls["set_input_shape"]
    np.testing.assert_array_equal(part([value], rig.call(2, stream=stream))[0].numpy(), data * 2 + 1)
    # the failed run may have left the context in any state, so everything is set again
    assert rig.trt.calls["set_input_shape"] == calls_before + 1


def test_a_failed_run_keeps_no_copy_of_an_input(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    part, stream = rig.part("affine"), rig.stream()
    base, _ = rig.values(9, stream=stream)
    unaligned = DeviceArray(rig.memory, base.address + 4, (2, 4), "float32", owner=base, stream=stream)
    part([unaligned], rig.call(2, stream=stream))
    addresses = set(rig.gpu.blocks)
    monkeypatch.setattr(fake_tensorrt._Context, "_execute", lambda self, stream: False)
    with pytest.raises(EngineError):
        part([unaligned], rig.call(2, stream=stream))
    gc.collect()
    assert set(rig.gpu.blocks) == addresses


def test_raises_if_there_is_no_memory(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    rig.driver.fails["cuMemAllocFromPoolAsync"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(EngineError, match="cuda_error_out_of_memory"):
        part([value], rig.call(2, stream=stream))
    rig.driver.fails.clear()
    part([value], rig.call(2, stream=stream))


def test_raises_if_there_is_no_memory_for_an_output_of_unknown_size(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    part, stream = rig.part("nonzero"), rig.stream()
    value = rig.array(np.float32([0, 1]), stream)
    part([value], rig.call(2, stream=stream))

    def refuse(self: Any, stream: int) -> bool:
        assert self._allocators["o0"].reallocate_output("o0", 0, 8, 256) == 0
        return False

    monkeypatch.setattr(fake_tensorrt._Context, "_execute", refuse)
    rig.driver.fails["cuMemAllocFromPoolAsync"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(EngineError, match="cuda_error_out_of_memory"):
        part([value], rig.call(2, stream=stream))
    rig.driver.fails.clear()


def test_sets_shapes_again_after_calls_with_other_shapes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[object] = []
    array_maker = rig.memory.array_maker

    def recorded_array_maker(*arguments: Any) -> Any:
        requests.append(arguments)
        return array_maker(*arguments)

    monkeypatch.setattr(rig.memory, "array_maker", recorded_array_maker)
    part, stream = rig.part("affine"), rig.stream()
    calls = [replace(rig.call(size, stream=stream), has_fixed_shapes=True) for size in (3, 5)]
    rig.trt.calls.clear()
    for call in (calls[0], calls[0], calls[1], calls[0], rig.call(4, stream=stream), calls[1]):
        value, data = rig.values(call.sizes[0], 4, stream=stream)
        (output,) = part([value], call)
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    assert rig.trt.calls["set_input_shape"] == 5  # of 6 calls, only the second has the shape of the call before it
    assert len(requests) == 3  # the output shapes of each `Call` are computed once


def test_does_not_set_unchanged_shapes_and_addresses_again(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    results = [part([value], rig.call(2, stream=stream))]
    rig.trt.calls.clear()
    results += [part([value], rig.call(2, stream=stream)) for _ in range(3)]
    assert rig.trt.calls == {"set_tensor_address": 3, "execute_async_v3": 3}  # each output has a new address
    address = results.pop()[0].data_ptr()
    rig.trt.calls.clear()
    (reused,) = part([value], rig.call(2, stream=stream))
    # the output gets the memory of the freed output, so its address is already set
    assert reused.data_ptr() == address and rig.trt.calls == {"execute_async_v3": 1}


def test_nothing_but_outputs_is_allocated_after_the_first_call(rig: Rig) -> None:
    part, stream = rig.part("wide"), rig.stream()
    value, _ = rig.values(2, WIDTH, stream=stream)
    part([value], rig.call(2, stream=stream))
    sizes: list[int] = []
    allocate = rig.gpu.allocate

    def recorded_allocate(size_bytes: int, stream: int | None = None) -> int:
        sizes.append(size_bytes)
        return allocate(size_bytes, stream)

    rig.gpu.allocate = recorded_allocate  # type: ignore[method-assign]
    for _ in range(3):
        part([value], rig.call(2, stream=stream))
    assert sizes == [2 * WIDTH * 4] * 3
