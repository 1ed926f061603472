"""A comparison leaves out the values that rounding decides, and no other values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from tests.stages.verify.conftest import convert_module
from trtbuild.stages.verify.comparing import Deviation
from trtbuild.stages.verify.rounding import MAX_RUNS, PerturbedRuns, deviations
from trtbuild.stages.verify.run import verify

TOLERANCE = 5e-3


def deviation_and_runs(
    model: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    result: torch.Tensor,
    weights: list[torch.Tensor] | None = None,
) -> tuple[Deviation, int]:
    """Return the deviation of `result` from the model's result, and the number of runs on changed values."""
    runs = 0

    def run(inputs: object, weights: object) -> list[torch.Tensor]:
        nonlocal runs
        runs += 1
        return [model(*inputs, *weights)]  # type: ignore[misc]

    expected = model(*inputs, *(weights or []))
    (deviation,) = deviations([result], [expected], [TOLERANCE], PerturbedRuns(run, inputs, weights or []))
    return deviation, runs


def test_a_model_is_not_run_again_if_its_result_is_equal() -> None:
    x = torch.linspace(-1, 1, 9)
    assert deviation_and_runs(lambda x: x.round(), [x], x.round()) == (Deviation(0.0), 0)


@pytest.mark.parametrize(
    ("model", "value", "wrong"),
    [
        (lambda x: x.long(), 2.9999, 3),
        (lambda x: x > 0.5, 0.50001, False),
        (lambda x: torch.stack((x, x * 0 + 0.5), -1).argmax(-1), 0.50001, 1),
        (lambda x: torch.where(x > 0.5, x, 0), 0.50001, 0),
        (lambda x: x.round(), 1.50001, 1),
    ],
)
def test_a_decision_that_a_last_bit_changes_is_left_out(
    model: Callable[..., torch.Tensor], value: float, wrong: float
) -> None:
    x = torch.tensor([-0.8, 0.2, value, 3.2])
    result = model(x)
    result[2] = wrong
    deviation, runs = deviation_and_runs(model, [x], result)
    assert deviation == Deviation(deviation.error, left_out_count=1)
    assert deviation.error <= TOLERANCE and 0 < runs < MAX_RUNS
    result[3] = not result[3] if result.dtype == torch.bool else 7  # rounding does not decide this value
    deviation, runs = deviation_and_runs(model, [x], result)
    assert deviation.error > TOLERANCE and deviation.left_out_count == 1 and runs == MAX_RUNS


def test_weights_are_changed_like_inputs() -> None:
    x, w = torch.arange(4), torch.tensor([0.1, 0.49999, 0.7, 2.0])
    deviation, _ = deviation_and_runs(lambda x, w: w[x] > 0.5, [x], torch.tensor([False, True, True, True]), [w])
    assert deviation == Deviation(0.0, left_out_count=1)


def test_results_without_floating_point_inputs_are_compared() -> None:
    x = torch.arange(8)
    result = x * 2
    result[0] += 1
    deviation, runs = deviation_and_runs(lambda x: x * 2, [x], result)
    assert deviation.error == float("inf") and runs == MAX_RUNS and deviation.left_out_count == 0


def test_a_special_case_at_zero_is_compared() -> None:
    x = torch.tensor([-1.0, 0.0, 1.0])
    deviation, _ = deviation_and_runs(lambda x: x.sign().long(), [x], torch.tensor([-1, 1, 1]))
    assert deviation.error == float("inf") and deviation.left_out_count == 0


def test_values_at_the_ends_of_a_range_are_compared() -> None:
    x = torch.tensor([1.0, 1.25, 2.0])
    deviation, runs = deviation_and_runs(lambda x: torch.where((x >= 1) & (x <= 2), x, torch.nan), [x], x * 2)
    assert deviation == Deviation(1.0) and runs == MAX_RUNS


def test_a_size_that_rounding_decides_is_left_out() -> None:
    x = torch.tensor([0.2, 0.50001, 0.9])
    deviation, _ = deviation_and_runs(lambda x: x[x > 0.5], [x], x[2:])
    assert deviation == Deviation(0.0, compared=False, left_out_count=2)
    deviation, _ = deviation_and_runs(lambda x: x[x > 0.1], [x], x[2:])  # no value is near 0.1
    assert deviation.error == float("inf") and "shape [1] instead of [3]" in deviation.text


@pytest.mark.parametrize(
    ("amplification", "error", "is_right"),
    [(3, 1.7, True), (3, 2.5, False), (0.5, 1.7, False)],
    ids=["amplified", "beyond the limit", "not amplified"],
)
def test_an_error_that_the_model_amplifies_is_right_up_to_two_tolerances(
    amplification: float, error: float, is_right: bool
) -> None:
    x = torch.rand(1000) + 0.5
    result = torch.exp(amplification * x) * (1 + error * TOLERANCE)
    deviation, _ = deviation_and_runs(lambda x: torch.exp(amplification * x), [x], result)
    assert deviation.error > TOLERANCE and deviation.left_out_count == 0
    assert (deviation.error <= deviation.allowed_error) == is_right


def test_a_wrong_number_is_never_left_out() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 64), torch.randn(64, 64)
    result = x @ w
    result[0, 0] += 0.05 * result.abs().max()
    deviation, _ = deviation_and_runs(lambda x, w: x @ w, [x], result, [w])
    assert deviation.error == pytest.approx(0.05, rel=1e-3) and deviation.left_out_count == 0


class _Classes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(16, 64), torch.nn.Linear(64, 21)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu()).argmax(-1)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_classes_in_half_precision_are_right(precision: str) -> None:
    """For some rows, rounding decides between two classes."""
    converted = convert_module(_Classes().eval(), [((8192, 16), "float32")], precision)
    report = verify(converted.job, converted.read)
    assert not list(report.failures())
    assert "rounding decides" in report.lowered.text


def test_a_model_that_truncates_numbers_in_half_precision_builds() -> None:
    body = "torch.nn.functional.conv_transpose1d(x0, torch.linspace(-1, 1, 96).half().reshape(4, 8, 3)).long()"
    build(ModuleCase(module_from_text([], body, 1), [("float16", [4, (3, 5, 7)])]))
