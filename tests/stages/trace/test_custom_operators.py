"""Traces of models that call custom operators. A fake implementation declares the sizes and types of an operator's results.

The proof of a trace, which compares the exported program with the module, finds wrong fake implementations.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from trtbuild.errors import SourceError

ROWS = {"x": ((1, 8), (2, 8), (8, 8))}


def operator(name: str, **options: Any) -> Any:
    """A decorator that registers an operator in the namespace of this file."""
    return torch.library.custom_op(f"traced_operators::{name}", mutates_args=(), **options)


@operator("negate")
def negate(x: torch.Tensor) -> torch.Tensor:
    return -x


negate.register_fake(torch.empty_like)


@operator("wide")
def wide(x: torch.Tensor) -> torch.Tensor:
    """Its fake implementation declares too few columns."""
    return torch.cat([x, x], 1)


wide.register_fake(torch.empty_like)


@operator("late")
def late(x: torch.Tensor) -> torch.Tensor:
    """Its fake implementation is wrong from 5 rows on."""
    return x[:4].clone()


late.register_fake(torch.empty_like)


@operator("double")
def double(x: torch.Tensor) -> torch.Tensor:
    """Its fake implementation declares another type."""
    return x.double()


double.register_fake(torch.empty_like)


@operator("positive")
def positive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results with a size that depends on data."""
    rows = (x[:, 0] > 0).nonzero().reshape(-1)
    return x[rows], rows


@positive.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(count, x.shape[1]), x.new_empty(count, dtype=torch.int64)


@operator("uneven")
def uneven(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two results have different sizes, which the fake implementation declares to be equal."""
    rows = (x[:, 0] > -100).nonzero().reshape(-1)
    return x[rows], rows[1:].clone()


uneven.register_fake(positive._abstract_fn)


@operator("without_fake")
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@operator("counted")
def counted(x: torch.Tensor) -> int:
    return 3


@counted.register_fake
def _(x: torch.Tensor) -> int:
    return 3


@torch.library.custom_op("traced_operators::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("traced_operators::on_gpu", mutates_args=(), device_types="cuda")
def on_gpu(x: torch.Tensor, shift: float) -> torch.Tensor:
    raise AssertionError("there is no GPU")


on_gpu.register_fake(lambda x, shift: torch.empty_like(x))


def error_of(traced: Any, job_of: Any, model: Any, shapes: Any = ROWS) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(model, job_of(shapes))
    return caught.value


def test_a_program_calls_the_operator_and_contains_its_schema(traced: Any, job_of: Any) -> None:
    result = traced(lambda x: negate(x.relu()) + 1, job_of(ROWS))
    assert "traced_operators.negate.default@" in result.graph
    assert b"traced_operators::negate(Tensor x) -> Tensor" in result.program


def test_a_size_that_depends_on_data_reaches_the_outputs(traced: Any, job_of: Any) -> None:
    def model(x: torch.Tensor) -> Any:
        chosen, rows = positive(x)
        return negate(chosen) * 2, rows

    outputs = traced(model, job_of(ROWS)).interface["outputs"]
    assert [entry["shape"] for entry in outputs] == [[["data", 0], 8], [["data", 0]]]


@pytest.mark.parametrize(
    ("function", "declared"),
    [(wide, r"float32\[1, 16\].* declares float32\[1, 8\]"), (late, r"float32\[4, 8\].* declares float32\[8, 8\]")],
)
def test_the_proof_finds_a_wrong_size_of_a_fake_implementation(
    traced: Any, job_of: Any, function: Any, declared: str
) -> None:
    error = error_of(traced, job_of, lambda x: function(x).relu())
    assert error.code == "operator-sizes" and "register_fake" in str(error.hint)
    assert re.search(declared, error.text), error.text


def test_the_proof_finds_a_wrong_type_of_a_fake_implementation(traced: Any, job_of: Any) -> None:
    error = error_of(traced, job_of, lambda x: double(x) * 2)
    assert error.code == "operator-sizes" and "returns float64[1, 8]" in error.text


def test_the_proof_finds_sizes_that_depend_on_data_and_are_wrongly_declared_equal(traced: Any, job_of: Any) -> None:
    def model(x: torch.Tensor) -> Any:
        chosen, rows = uneven(x)
        return chosen * 2, rows + 1

    error = error_of(traced, job_of, model)
    assert error.code == "operator-sizes" and "traced_operators::uneven returns" in error.text


def test_rejects_an_operator_without_a_fake_implementation(traced: Any, job_of: Any) -> None:
    error = error_of(traced, job_of, lambda x: without_fake(x) * 2)
    assert error.code == "no-fake-implementation"
    assert "traced_operators::without_fake has no fake implementation" in error.text
    assert '@torch.library.register_fake("traced_operators::without_fake")' in str(error.hint)


def test_rejects_an_operator_that_writes_to_its_arguments(traced: Any, job_of: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        scale_(y)
        return y

    error = error_of(traced, job_of, model)
    assert error.code == "mutating-operator"
    assert error.text == "the operator traced_operators::scale_ writes to its argument x"
    assert error.file is not None and "mutates_args=()" in str(error.hint)


def test_rejects_an_operator_that_returns_a_number(traced: Any, job_of: Any) -> None:
    assert error_of(traced, job_of, lambda x: x * counted(x)).code in ("operator-result", "export")


def test_rejects_an_operator_in_a_branch(traced: Any, job_of: Any) -> None:
    def model(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: negate(x), lambda x: x + 1, (x,))

    error = error_of(traced, job_of, model)
    assert error.code == "operator-in-branch", error.text


def test_rejects_an_argument_that_depends_on_data(traced: Any, job_of: Any) -> None:
    @operator("repeated")
    def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
        return x * times

    repeated.register_fake(lambda x, times: torch.empty_like(x))
    error = error_of(traced, job_of, lambda x: repeated(x, (x > 0).sum().item()))
    assert error.code == "operator-argument" and "a number that depends on data" in error.text


def test_an_operator_without_a_cpu_kernel_is_proved_by_its_calls(traced: Any, job_of: Any) -> None:
    assert "on_gpu.default" in traced(lambda x: on_gpu(x * 2, 0.5).relu(), job_of(ROWS)).graph
    # the trace has removed the kernel that it had registered for the CPU
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("traced_operators::on_gpu", "CPU")

    def branch(x: torch.Tensor) -> torch.Tensor:
        return on_gpu(x * 2 if x.shape[0] > 1 else x * 3, 0.5)

    assert error_of(traced, job_of, branch).code == "frozen-branch"
