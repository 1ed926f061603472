"""One engine: shapes, addresses, contexts, threads, streams, lifetimes. Fakes replace TensorRT 8.6 and CUDA."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from tests.runtime.fake_tensorrt.samples import SAMPLES, WIDTH
from tests.runtime.rigs import Rig, partition
from trtbuild.errors import EngineError, PackageDamaged
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.memory.arrays import DeviceArray


def test_computes_correct_results_at_shapes_of_all_profiles(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    for rows, profile in ((1, 0), (8, 0), (3, 0), (8, 1), (32, 1), (3, 0)):
        value, data = rig.values(rows, 4, stream=stream)
        (output,) = part([value], rig.call(rows, stream=stream, profile=profile))
        assert output.shape == (rows, 4) and output.dtype == "float32"
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


@pytest.mark.parametrize("sample", ["pair", "half", "scalar", "kinds"])
def test_computes_other_types_scalars_and_several_outputs(rig: Rig, sample: str) -> None:
    spec, stream = SAMPLES[sample], rig.stream()
    shapes = {"pair": [(2, 3)] * 2, "half": [(2, 3)], "scalar": [()], "kinds": [(4,)]}[sample]
    data = [
        (np.arange(int(np.prod(shape))) - 1).reshape(shape).astype(dtype)
        for shape, (dtype, _) in zip(shapes, spec.inputs, strict=True)
    ]
    outputs = rig.part(sample)([rig.array(values, stream) for values in data], rig.call(*shapes[0], stream=stream))
    for output, expected in zip(outputs, spec.compute(*data), strict=True):
        np.testing.assert_array_equal(output.numpy(), expected)


def test_passes_an_address_for_an_empty_tensor(rig: Rig) -> None:
    part, stream = rig.part("empty"), rig.stream()
    value, _ = rig.values(0, 4, stream=stream)
    assert value.data_ptr() == 0
    (output,) = part([value], rig.call(0, stream=stream))
    assert output.shape == (0, 4) and output.numpy().shape == (0, 4)
    value, data = rig.values(2, 4, stream=stream)
    np.testing.assert_array_equal(part([value], rig.call(2, stream=stream))[0].numpy(), data * 2 + 1)


def test_an_output_of_unknown_size_has_its_computed_size(rig: Rig) -> None:
    part, stream = rig.part("nonzero"), rig.stream()
    for data in ([0, 5, 0, 7], [1, 2, 3], [0, 0, 0]):
        (output,) = part([rig.array(np.float32(data), stream)], rig.call(len(data), stream=stream))
        np.testing.assert_array_equal(output.numpy(), np.stack(np.nonzero(data)))


def test_outputs_are_new_tensors_each_time(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    (first,) = part([value], rig.call(2, stream=stream))
    other, _ = rig.values(2, 4, stream=stream, start=100)
    (second,) = part([other], rig.call(2, stream=stream))
    assert first.data_ptr() != second.data_ptr()
    np.testing.assert_array_equal(first.numpy(), data * 2 + 1)


def test_threads_have_contexts_of_their_own_and_calls_are_safe(rig: Rig) -> None:
    part, wrong = rig.part("wide"), []

    def work(number: int) -> None:
        stream = rig.stream()
        for turn in range(5):
            value, data = rig.values(2 + turn, WIDTH, stream=stream, start=number)
            (output,) = part([value], rig.call(2 + turn, stream=stream))
            if not np.array_equal(output.numpy(), np.maximum(data * np.float32(0.125), 0)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert rig.trt.contexts_made == 4


def test_a_thread_on_two_streams_has_two_contexts_and_workspaces(rig: Rig) -> None:
    part, one, other = rig.part("wide"), rig.stream(), rig.stream()
    first, data = rig.values(2, WIDTH, stream=one)
    second, more = rig.values(3, WIDTH, stream=other)
    (output,) = part([first], rig.call(2, stream=one))
    # with only one context or one workspace, the fake raises Misuse
    (other_output,) = part([second], rig.call(3, stream=other))
    np.testing.assert_array_equal(other_output.numpy(), more * 0.125)
    np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_engines_of_a_thread_and_stream_share_their_workspace(rig: Rig) -> None:
    stream = rig.stream()
    parts = [rig.part("wide") for _ in range(3)]
    value, data = rig.values(2, WIDTH, stream=stream)
    for part in parts:
        (value,) = part([value], rig.call(2, stream=stream))
    np.testing.assert_array_equal(value.numpy(), data * 0.125**3)
    assert len({address for address, *_ in rig.gpu.workspaces}) == 1


def test_a_context_gets_the_memory_of_a_workspace_that_has_grown(rig: Rig) -> None:
    stream = rig.stream()
    workspace = rig.workspaces.workspace_for(stream)
    part = rig.part("wide")
    value, data = rig.values(2, WIDTH, stream=stream)
    part([value], rig.call(2, stream=stream))
    with rig.memory.on_device():
        workspace.reserve(workspace.size_bytes * 2)
    (output,) = part([value], rig.call(2, stream=stream))
    np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_a_new_thread_reuses_the_context_of_an_ended_thread(rig: Rig) -> None:
    part, stream = rig.part("wide"), rig.stream()
    results = []

    def work() -> None:
        value, data = rig.values(2, WIDTH, stream=stream)
        results.append((part([value], rig.call(2, stream=stream))[0], data))

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert rig.trt.contexts_made == 1
    for output, data in results:
        np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_a_reused_context_computes_in_the_workspace_of_its_new_thread(rig: Rig) -> None:
    part, other, stream = rig.part("wide"), rig.part("wide"), rig.stream()
    value, data = rig.values(2, WIDTH, stream=stream)
    thread = threading.Thread(target=lambda: part([value], rig.call(2, stream=stream)))
    thread.start()
    thread.join()
    (first,) = other([value], rig.call(2, stream=stream))
    (second,) = part([first], rig.call(2, stream=stream))
    assert rig.trt.contexts_made == 2
    old_workspace, new_workspace, workspace_of_reused = (address for address, *_ in rig.gpu.workspaces[-3:])
    assert old_workspace != new_workspace == workspace_of_reused
    np.testing.assert_array_equal(second.numpy(), data * 0.125**2)


def test_contexts_are_destroyed_only_after_their_work(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    (output,) = part([value], rig.call(2, stream=stream))
    del part
    gc.collect()
    assert rig.trt.contexts_alive == 0  # the fixture fails if a context was destroyed before its work had run
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_close_destroys_all_contexts(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    part([value], rig.call(2, stream=stream))
    part.close()
    assert rig.trt.contexts_alive == 0


def test_inputs_can_be_deleted_before_the_gpu_has_read_them(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    results = []
    for turn in range(3):
        value, data = rig.values(2, 4, stream=stream, start=turn * 10)
        results.append((part([value], rig.call(2, stream=stream))[0], data))
        del value
    for output, data in results:
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_unaligned_or_non_contiguous_inputs_are_copied_and_kept(rig: Rig) -> None:
    part, stream = rig.part("pair"), rig.stream()
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    whole = rig.array(data, stream)
    transposed = DeviceArray(rig.memory, whole.address, (2, 3), "float32", owner=whole, stream=stream, strides=(1, 2))
    more = np.arange(7, dtype=np.float32)
    base = rig.array(more, stream)
    shifted = DeviceArray(rig.memory, base.address + 4, (2, 3), "float32", owner=base, stream=stream)
    assert not transposed.is_contiguous()
    outputs = part([transposed, shifted], rig.call(2, 3, stream=stream))
    np.testing.assert_array_equal(outputs[0].numpy(), data.T + more[1:].reshape(2, 3))
    np.testing.assert_array_equal(outputs[1].numpy(), data.T)


def test_calls_on_the_default_stream_are_ordered_with_it(rig: Rig) -> None:
    part = rig.part("affine")  # the fake raises if an engine is enqueued on the default stream itself
    value, data = rig.values(2, 4, stream=0)
    with rig.memory.on_device():
        rig.driver.cuMemcpyDtoDAsync(value.address, rig.array(data + 5, 0).address, value.nbytes, 0)
        (output,) = part([value], rig.call(2, stream=0))
        rig.driver.cuMemsetD8Async(value.address, 0, value.nbytes, 0)
    np.testing.assert_array_equal(output.numpy(), (data + 5) * 2 + 1)


def test_an_engine_without_shared_profiles_rejects_a_second_context_of_a_profile(rig: Rig) -> None:
    part, one, other = rig.part("unshared"), rig.stream(), rig.stream()
    value, data = rig.values(2, 4, stream=one)
    (output,) = part([value], rig.call(2, stream=one))
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    with pytest.raises(EngineError, match="profile 0 cannot be used") as caught:
        part([value], rig.call(2, stream=other))
    assert "profile sharing" in str(caught.value)
    value, data = rig.values(9, 4, stream=other)
    (output,) = part([value], rig.call(9, stream=other, profile=1))
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_rejects_an_engine_with_a_shape_input(rig: Rig) -> None:
    with pytest.raises(PackageDamaged, match="i1 of the engine of shaped is int32 on the host, but int32"):
        rig.part("shaped")


def test_rejects_the_engine_of_another_partition(rig: Rig) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("kinds"))
    with pytest.raises(PackageDamaged, match="i0 of the engine of affine is int32, but float32"):
        EnginePart(rig.library, engine, partition("affine"), rig.workspaces)


def test_rejects_an_invalid_plan_with_tensorrts_message(rig: Rig) -> None:
    with pytest.raises(EngineError, match=r"tensorrt 8\.6\.1 refuses the engine: \S"):
        rig.library.load_engine(b"not a plan")


def test_makes_the_engines_device_current(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    rig.gpu.push_device(7)
    try:
        (output,) = part([value], rig.call(2, stream=stream))  # on another device, the fake raises Misuse
        assert rig.gpu.current() == 7
    finally:
        rig.gpu.pop_device()
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_measures_the_time_of_layers(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    assert part.layer_times([value], rig.call(2, stream=stream)) == [("layer", 0.5)]


def test_reports_the_memory_of_a_context_for_each_profile(rig: Rig) -> None:
    assert rig.part("wide").memory_bytes() == [SAMPLES["wide"].memory_bytes] * 2
