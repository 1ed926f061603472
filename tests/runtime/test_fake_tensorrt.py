"""The fake of TensorRT 8.6 answers what answers.json has, which the recorder compares with a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_record import SCHEMA, differences, of_fake
from tests.runtime import fake_tensorrt
from tests.runtime.fake_gpu import FakeGpu, Misuse
from tests.runtime.fake_tensorrt import FakeTensorRT, probes

ANSWERS = json.loads((Path(fake_tensorrt.__file__).parent / "answers.json").read_text())


@pytest.fixture(scope="module")
def answers() -> Any:
    return json.loads(json.dumps(of_fake()))["answers"]


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_the_fake_answers_what_was_written_down(name: str, answers: Any) -> None:
    assert differences(ANSWERS["answers"][name], answers[name]) == []


def test_every_answer_is_to_a_question() -> None:
    assert ANSWERS["schema"] == SCHEMA and ANSWERS["by"]["library"]
    assert set(ANSWERS["answers"]) == set(probes.PROBES)


def test_a_difference_is_found_and_said() -> None:
    changed = json.loads(json.dumps(ANSWERS["answers"]))
    changed["addresses"]["returns"]["null input"]["returns"] = "something else"
    (line,) = differences(ANSWERS["answers"], changed)
    assert line.startswith("/addresses/returns/null input/returns: True was recorded")


def _ready(trt: FakeTensorRT, gpu: FakeGpu, sample: str, rows: int, width: int, *, memory: bool = True) -> Any:
    bench = probes.Bench(trt, {sample: trt.plan(sample)}, gpu)
    bench.start()
    context = (bench.context if memory else bench.bare_context)(bench.engine(sample))
    context.set_input_shape("i0", (rows, width))
    for name in ("i0", "o0"):
        context.set_tensor_address(name, gpu.allocate(rows * width * 4))
    return context


def test_one_context_on_two_streams_at_once_is_a_misuse() -> None:
    gpu = FakeGpu()
    context = _ready(FakeTensorRT(gpu), gpu, "affine", 2, 4)
    one, other = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    assert context.execute_async_v3(one)
    with pytest.raises(Misuse, match="on two streams"):
        context.execute_async_v3(other)
    gpu.synchronize_all()
    assert context.execute_async_v3(other)
    gpu.synchronize_all()


def test_memory_that_is_missing_or_shared_at_once_is_a_misuse() -> None:
    gpu = FakeGpu()
    trt = FakeTensorRT(gpu)
    first, second = _ready(trt, gpu, "wide", 2, 256), _ready(trt, gpu, "wide", 2, 256)
    one, other = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    with pytest.raises(Misuse, match="the context's memory"):
        _ready(trt, gpu, "wide", 2, 256, memory=False).execute_async_v3(one)
    first.device_memory = second._memory
    assert first.execute_async_v3(one)
    with pytest.raises(Misuse, match="in one workspace"):
        second.execute_async_v3(other)
    gpu.synchronize_all()


def test_memory_that_is_freed_before_the_work_is_a_misuse() -> None:
    gpu = FakeGpu()
    context = _ready(FakeTensorRT(gpu), gpu, "affine", 2, 4)
    stream = gpu.new_stream(blocking=False)
    assert context.execute_async_v3(stream)
    gpu.free(context.get_tensor_address("i0"))
    with pytest.raises(Misuse, match="i0 is not in allocated memory"):
        gpu.synchronize(stream)
