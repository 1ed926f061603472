"""One engine as a part: shapes, addresses, contexts, threads, streams, lifetimes. On the fake of TensorRT 8.6 and CUDA."""

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


def test_an_engine_computes_what_it_should_at_any_shape_of_its_profiles(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    for rows, profile in ((1, 0), (8, 0), (3, 0), (8, 1), (32, 1), (3, 0)):
        value, data = rig.values(rows, 4, stream=stream)
        (output,) = part([value], rig.call(rows, stream=stream, profile=profile))
        assert output.shape == (rows, 4) and output.dtype == "float32"
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


@pytest.mark.parametrize("sample", ["pair", "half", "scalar", "kinds"])
def test_types_scalars_and_several_outputs(rig: Rig, sample: str) -> None:
    spec, stream = SAMPLES[sample], rig.stream()
    shapes = {"pair": [(2, 3)] * 2, "half": [(2, 3)], "scalar": [()], "kinds": [(4,)]}[sample]
    data = [
        (np.arange(int(np.prod(shape))) - 1).reshape(shape).astype(dtype)
        for shape, (dtype, _) in zip(shapes, spec.inputs, strict=True)
    ]
    outputs = rig.part(sample)([rig.array(one, stream) for one in data], rig.call(*shapes[0], stream=stream))
    for output, wanted in zip(outputs, spec.compute(*data), strict=True):
        np.testing.assert_array_equal(output.numpy(), wanted)


def test_an_empty_tensor_has_an_address(rig: Rig) -> None:
    part, stream = rig.part("empty"), rig.stream()
    value, _ = rig.values(0, 4, stream=stream)
    assert value.data_ptr() == 0
    (output,) = part([value], rig.call(0, stream=stream))
    assert output.shape == (0, 4) and output.numpy().shape == (0, 4)
    value, data = rig.values(2, 4, stream=stream)
    np.testing.assert_array_equal(part([value], rig.call(2, stream=stream))[0].numpy(), data * 2 + 1)


def test_an_output_of_unknown_size_is_as_large_as_it_came_out(rig: Rig) -> None:
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
    (a,) = part([first], rig.call(2, stream=one))
    (b,) = part([second], rig.call(3, stream=other))  # with one context or one workspace this is a Misuse
    np.testing.assert_array_equal(b.numpy(), more * 0.125)
    np.testing.assert_array_equal(a.numpy(), data * 0.125)


def test_engines_of_a_thread_and_stream_share_their_workspace(rig: Rig) -> None:
    stream = rig.stream()
    parts = [rig.part("wide") for _ in range(3)]
    value, data = rig.values(2, WIDTH, stream=stream)
    for part in parts:
        (value,) = part([value], rig.call(2, stream=stream))
    np.testing.assert_array_equal(value.numpy(), data * 0.125**3)
    assert len(rig.gpu.workspaces) <= 3 and len({entry[0] for entry in rig.gpu.workspaces}) == 1


def test_a_grown_workspace_is_set_in_all_its_contexts(rig: Rig) -> None:
    stream = rig.stream()
    workspace = rig.workspaces.here(stream)
    part = rig.part("wide")
    value, data = rig.values(2, WIDTH, stream=stream)
    part([value], rig.call(2, stream=stream))
    with rig.memory.on_device():
        workspace.reserve(workspace.size_bytes * 2)
    (output,) = part([value], rig.call(2, stream=stream))
    np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_an_ended_threads_context_is_for_the_next_one(rig: Rig) -> None:
    part, stream = rig.part("wide"), rig.stream()
    kept = []

    def work() -> None:
        value, data = rig.values(2, WIDTH, stream=stream)
        kept.append((part([value], rig.call(2, stream=stream))[0], data))

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert rig.trt.contexts_made == 1
    for output, data in kept:
        np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_a_context_that_is_taken_over_computes_in_its_new_threads_workspace(rig: Rig) -> None:
    part, other, stream = rig.part("wide"), rig.part("wide"), rig.stream()
    value, data = rig.values(2, WIDTH, stream=stream)
    thread = threading.Thread(target=lambda: part([value], rig.call(2, stream=stream)))
    thread.start()
    thread.join()
    (first,) = other([value], rig.call(2, stream=stream))
    (second,) = part([first], rig.call(2, stream=stream))
    assert rig.trt.contexts_made == 2
    before, mine, taken_over = (address for address, *_ in rig.gpu.workspaces[-3:])
    assert before != mine == taken_over
    np.testing.assert_array_equal(second.numpy(), data * 0.125**2)


def test_contexts_go_only_after_their_work(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    (output,) = part([value], rig.call(2, stream=stream))
    del part
    gc.collect()
    assert rig.trt.contexts_alive == 0  # and no fault: the fixture looks
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_close_lets_go_of_all_contexts(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    part([value], rig.call(2, stream=stream))
    part.close()
    assert rig.trt.contexts_alive == 0


def test_inputs_may_go_before_the_gpu_has_read_them(rig: Rig) -> None:
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
    turned = DeviceArray(rig.memory, whole.address, (2, 3), "float32", owner=whole, stream=stream, strides=(1, 2))
    more = np.arange(7, dtype=np.float32)
    base = rig.array(more, stream)
    shifted = DeviceArray(rig.memory, base.address + 4, (2, 3), "float32", owner=base, stream=stream)
    assert not turned.is_contiguous()
    outputs = part([turned, shifted], rig.call(2, 3, stream=stream))
    np.testing.assert_array_equal(outputs[0].numpy(), data.T + more[1:].reshape(2, 3))
    np.testing.assert_array_equal(outputs[1].numpy(), data.T)


def test_calls_on_the_default_stream_are_ordered_with_it(rig: Rig) -> None:
    part = rig.part("affine")  # the fake raises where an engine is enqueued on the default stream itself
    value, data = rig.values(2, 4, stream=0)
    with rig.memory.on_device():
        rig.driver.cuMemcpyDtoDAsync(value.address, rig.array(data + 5, 0).address, value.nbytes, 0)
        (output,) = part([value], rig.call(2, stream=0))
        rig.driver.cuMemsetD8Async(value.address, 0, value.nbytes, 0)
    np.testing.assert_array_equal(output.numpy(), (data + 5) * 2 + 1)


def test_an_engine_without_shared_profiles_says_what_it_cannot(rig: Rig) -> None:
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


def test_an_input_whose_values_are_shapes_is_refused_when_the_engine_is_opened(rig: Rig) -> None:
    with pytest.raises(PackageDamaged, match="i1 of the engine of shaped is int32 on the host, but int32"):
        rig.part("shaped")


def test_an_engine_of_another_partition_is_refused(rig: Rig) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("kinds"))
    with pytest.raises(PackageDamaged, match="i0 of the engine of affine is int32, but float32"):
        EnginePart(rig.library, engine, partition("affine"), rig.workspaces)


def test_an_invalid_plan_is_refused_with_tensorrts_message(rig: Rig) -> None:
    with pytest.raises(EngineError, match=r"tensorrt 8\.6\.1 refuses the engine: \S"):
        rig.library.load_engine(b"not a plan")


def test_the_engines_device_is_made_current_where_it_is_not(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, data = rig.values(2, 4, stream=stream)
    rig.gpu.push_device(7)
    try:
        (output,) = part([value], rig.call(2, stream=stream))  # a Misuse on another device
        assert rig.gpu.current() == 7
    finally:
        rig.gpu.pop_device()
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_layers_are_timed(rig: Rig) -> None:
    part, stream = rig.part("affine"), rig.stream()
    value, _ = rig.values(2, 4, stream=stream)
    assert part.layer_times([value], rig.call(2, stream=stream)) == [("layer", 0.5)]


def test_memory_of_a_context_is_known_by_profile(rig: Rig) -> None:
    assert rig.part("wide").memory_bytes() == [SAMPLES["wide"].memory_bytes] * 2
