"""The comparison of engines with PyTorch. No test needs a GPU, because PyTorch on the CPU takes the place of TensorRT."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import ConvertedModel, convert_module, replace_job
from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis
from trtbuild.core.model.verification import tolerances
from trtbuild.core.partition.partitions import Partition
from trtbuild.driver.gpu_comparisons.engines import EngineRunner, reason_without_torch
from trtbuild.errors import EngineError
from trtbuild.runtime.calls.call import Call
from trtbuild.stages.verify.run import verify
from trtbuild.stages.verify.running import TorchReference, Weights


class FakeMemory:
    """Host memory in place of a GPU's memory. `calls` has the calls in their order."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[str] = []

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        self.calls.append("on device")
        yield

    def stream(self) -> int:
        return 7  # any number, because host memory has no streams

    def synchronize(self, stream: int) -> None:
        self.calls.append(f"synchronize {stream}")


class FakeEngines:
    """Fakes of engines. PyTorch computes their results, from inputs rounded to 11 bits as in TF32.

    `spoil` is a function that changes the results."""

    def __init__(self, converted: ConvertedModel, spoil: Any = lambda value: value) -> None:
        self.memory = FakeMemory()
        self.calls: list[Call] = []
        self._torch = TorchReference(
            converted.job.programs, Weights(converted.job.weights, converted.read), converted.read
        )
        self._spoil = spoil

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Any:
        assert not cuda_graphs

        def run(values: Sequence[Any], call: Call) -> Sequence[Any]:
            assert all(value.is_contiguous() for value in values)
            self.calls.append(call)
            self.memory.calls.append("run")
            rounded = [value.half().float() if value.dtype is torch.float32 else value for value in values]
            return [self._spoil(value) for value in self._torch.run_part(partition, rounded)]

        return run


PLAN = ShapePlan((Symbol("rows", 1, 8, 4, multiple_of=1),), ((SymbolAxis(0), 8),))


@pytest.fixture(scope="module")
def converted() -> ConvertedModel:
    torch.manual_seed(0)
    float32_model = convert_module(
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval(), [(("b", 8), "float32")]
    )
    return replace_job(float32_model, tolerances=tolerances("engine"))


def test_an_engine_with_the_rounding_of_a_gpu_is_right(converted: ConvertedModel) -> None:
    engines = FakeEngines(converted)
    report = verify(converted.job, converted.read, lambda *_: EngineRunner(engines, PLAN))
    (part,) = report.partitions
    assert (report.runner, part.status) == ("engine", "right") and 1e-5 < part.error <= 1e-3
    assert [(call.profile, call.sizes, call.stream) for call in engines.calls] == [
        (point.profile, point.sizes, 7) for point in converted.job.points
    ]
    assert engines.memory.calls == ["on device", "run", "synchronize 7"] * len(converted.job.points)


def test_a_wrong_engine_is_reported(converted: ConvertedModel) -> None:
    report = verify(
        converted.job, converted.read, lambda *_: EngineRunner(FakeEngines(converted, lambda value: value + 0.1), PLAN)
    )
    (part,) = report.partitions
    assert part.status == report.whole.status == "wrong"
    assert part.place is None  # the conversion to ONNX is right, so no operator is to blame


def test_an_engine_that_fails_is_wrong_with_the_message_of_tensorrt(converted: ConvertedModel) -> None:
    def refuse(_: Any) -> Any:
        raise EngineError("enqueueV3: Error Code 3")

    report = verify(converted.job, converted.read, lambda *_: EngineRunner(FakeEngines(converted, refuse), PLAN))
    assert report.partitions[0].text == "the engine fails: enqueueV3: Error Code 3"
    assert report.partitions[0].status == "wrong"


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [
        (None, "PyTorch here was built without CUDA"),
        ("13.0", "PyTorch here cannot use a GPU: the GPU's driver may be too old for CUDA 13.0"),
    ],
)
def test_the_reason_says_why_pytorch_cannot_use_a_gpu(
    cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert reason_without_torch() == reason
