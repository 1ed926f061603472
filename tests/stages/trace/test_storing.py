"""Forked copies of the trace's process store the weights. If they are large, a copy may start before the export."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.errors import InsufficientResources
from trtbuild.stages.trace import storing
from trtbuild.stages.trace.export.weights import ModuleWeights
from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout
from trtbuild.stages.trace.run import TraceResult, trace_module
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

SHAPES = {"x": ((1, 4), (2, 4), (3, 4))}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[list[str]]]:
    """A function that returns [process ID, number of tensors] for each call of `store`, in all processes."""
    return lambda: [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


@pytest.fixture(autouse=True)
def all_weights_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "LARGE_WEIGHTS_BYTES", 0)


@pytest.fixture
def trace(job_of: Any, tmp_path: Path) -> Callable[..., TraceResult]:
    """A function that traces a module. Each call of `store` is written to a file."""

    def store(weights: Sequence[torch.Tensor]) -> list[str]:
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{os.getpid()} {len(weights)}\n")
        return [digest(weight) for weight in weights]

    def run(module: torch.nn.Module, **options: Any) -> TraceResult:
        with torch.no_grad():
            return trace_module(
                module, job_of(SHAPES), Frames(FileOwners(), Path(__file__).parents[3]), store_weights=store, **options
            )

    return run


def stored_digests_are_correct(traced: TraceResult) -> bool:
    return traced.stored == [digest(value) for _, value in traced.weights]


def test_one_forked_copy_stores_the_weights_of_the_module(trace: Any, calls: Any) -> None:
    traced = trace(torch.nn.Linear(4, 3).eval())
    assert len(traced.weights) == 2 and stored_digests_are_correct(traced)
    ((process, count),) = calls()
    assert int(process) != os.getpid() and count == "2"


def test_a_weight_that_changes_during_the_export_is_not_taken_from_the_copy(trace: Any) -> None:
    class Changing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting():
                self.__dict__["memory"][:] = 7.0  # torch cannot detect this write
            return self.linear(x)

    module = Changing().eval()
    module.__dict__["memory"] = module.linear.weight.detach().numpy()
    traced = trace(module)
    assert 7.0 in [float(value.max()) for _, value in traced.weights]
    assert traced.stored is None  # the caller stores the weights


def test_a_weight_whose_stored_form_is_a_copy_is_stored_after_the_export(trace: Any, calls: Any) -> None:
    class Transposed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4).t())  # the stored form is contiguous, so it is a copy
            self.bias = torch.nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias

    traced = trace(Transposed().eval())
    assert len(traced.weights) == 2 and stored_digests_are_correct(traced)
    assert [count for _, count in calls()] == ["1", "1"]


def test_without_room_for_unused_weights_only_the_used_weights_are_stored(trace: Any, calls: Any) -> None:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 3), torch.nn.Linear(4, 300)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    def refuse(weights: Sequence[torch.Tensor]) -> None:
        if sum(weight.nbytes for weight in weights) > 1000:
            raise InsufficientResources("the disk is full", hint="free some space")

    traced = trace(Half().eval(), refuse_weights=refuse)
    assert stored_digests_are_correct(traced)
    assert [count for _, count in calls()] == ["2"]  # a call before the export would store all 4 weights


def test_storing_a_quantized_model_does_not_begin_before_the_export(job_of: Any) -> None:
    observer = torch.ao.quantization.MovingAverageMinMaxObserver
    quantizers = (
        torch.ao.quantization.FakeQuantize(observer, quant_min=-128, quant_max=127, dtype=torch.qint8),
        Quantizer(QuantizerLayout("int8", None, -127), torch.tensor(0.1)),
    )
    plain = torch.nn.Sequential(torch.nn.Linear(4, 3)).eval()
    quantized = [torch.nn.Sequential(torch.nn.Linear(4, 3), quantizer).eval() for quantizer in quantizers]
    for module, begins_early in ((plain, True), *((module, False) for module in quantized)):
        with storing.WeightStorage(lambda weights: [], lambda weights: None) as storage:
            storage.begin_early(module, ModuleWeights(module), job_of(SHAPES))
            assert (storage._early is not None) is begins_early
