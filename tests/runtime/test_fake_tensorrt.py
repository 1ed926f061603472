"""The fake TensorRT gives the answers of a real TensorRT 8.6 (recording.json), and rejects misuse of GPU memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_record import SCHEMA, differences, record_fake
from tests.runtime import fake_tensorrt
from tests.runtime.fake_gpu import FakeGpu, Misuse
from tests.runtime.fake_tensorrt import FakeTensorRT, probes
from tests.runtime.fake_tensorrt.samples import SAMPLES

RECORDED = json.loads((Path(fake_tensorrt.__file__).parent / "recording.json").read_text())


@pytest.fixture(scope="module")
def answers() -> Any:
    return json.loads(json.dumps(record_fake()))["answers"]


def test_the_recording_has_a_real_answer_to_every_probe() -> None:
    assert RECORDED["schema"] == SCHEMA
    assert RECORDED["by"] == {"library": "tensorrt", "version": "8.6.1", "gpu": "NVIDIA H200", "driver": 13000}
    assert set(RECORDED["answers"]) == set(probes.PROBES)


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_the_fake_gives_the_recorded_answer(name: str, answers: Any) -> None:
    assert differences(RECORDED["answers"][name], answers[name]) == []


def test_the_recording_has_the_calls_that_end_the_process() -> None:
    ended_in = {name: answer["in"] for name, answer in RECORDED["answers"].items() if answer.get("died") == -11}
    assert ended_in == {
        "a_shape_above_the_profile_inferred": "missing",
        "another_profile_and_its_shapes_inferred": "missing",
        "ends_the_process_by_a_negative_profile": "negative",
        "ends_the_process_by_a_profile_beyond_the_last": "none such",
        "ends_the_process_by_a_profile_in_use": "the same",
        "ends_the_process_by_shapes_that_do_not_go_together": "together",
    }


def test_samples_have_the_recorded_memory_sizes() -> None:
    engines = RECORDED["answers"]["describes_its_engines"]["returns"]
    assert {name: entry["returns"]["device_memory"] for name, entry in engines.items()} == {
        name: sample.memory_bytes for name, sample in SAMPLES.items()
    }


def test_differences_are_reported_except_memory_sizes_of_another_build() -> None:
    changed = json.loads(json.dumps(RECORDED["answers"]))
    changed["addresses"]["returns"]["null input"]["returns"] = "something else"
    wide = changed["describes_its_engines"]["returns"]["wide"]["returns"]
    wide["device_memory"] += 512  # another build of the engine may need more
    (line,) = differences(RECORDED["answers"], changed)
    assert line.startswith("/addresses/returns/null input/returns: True was recorded")
    wide["device_memory"] += 1  # TensorRT's memory sizes are multiples of 512
    assert len(differences(RECORDED["answers"], changed)) == 2


def _ready_context(
    trt: FakeTensorRT, gpu: FakeGpu, sample: str, rows: int, width: int, *, with_memory: bool = True
) -> Any:
    bench = probes.Bench(trt, {sample: trt.plan(sample)}, gpu)
    bench.start()
    context = (bench.context if with_memory else bench.bare_context)(bench.engine(sample))
    context.set_input_shape("i0", (rows, width))
    for name in ("i0", "o0"):
        context.set_tensor_address(name, gpu.allocate(rows * width * 4))
    return context


def test_rejects_one_context_on_two_streams_at_once() -> None:
    gpu = FakeGpu()
    context = _ready_context(FakeTensorRT(gpu), gpu, "affine", 2, 4)
    first_stream, second_stream = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    assert context.execute_async_v3(first_stream)
    with pytest.raises(Misuse, match="on two streams"):
        context.execute_async_v3(second_stream)
    gpu.synchronize_all()
    assert context.execute_async_v3(second_stream)
    gpu.synchronize_all()


def test_rejects_missing_memory_and_memory_that_two_streams_share() -> None:
    gpu = FakeGpu()
    trt = FakeTensorRT(gpu)
    first, second = _ready_context(trt, gpu, "wide", 2, 256), _ready_context(trt, gpu, "wide", 2, 256)
    first_stream, second_stream = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    with pytest.raises(Misuse, match="the context's memory"):
        _ready_context(trt, gpu, "wide", 2, 256, with_memory=False).execute_async_v3(first_stream)
    first.device_memory = second._memory
    assert first.execute_async_v3(first_stream)
    with pytest.raises(Misuse, match="in one workspace"):
        second.execute_async_v3(second_stream)
    gpu.synchronize_all()


def test_rejects_memory_that_is_freed_before_the_work() -> None:
    gpu = FakeGpu()
    context = _ready_context(FakeTensorRT(gpu), gpu, "affine", 2, 4)
    stream = gpu.new_stream(blocking=False)
    assert context.execute_async_v3(stream)
    gpu.free(context.get_tensor_address("i0"))
    with pytest.raises(Misuse, match="i0 is not in allocated memory"):
        gpu.synchronize(stream)
