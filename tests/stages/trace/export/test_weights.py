"""Weights with several names (tied weights), files of weights, and the forked process that stores weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.trace.export.weights import ModuleWeights, fill_unset_weights
from trtbuild.stages.trace.run import trace_module
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 2)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("steps", torch.arange(4.0), persistent=False)
        if tie:
            self.b.weight = self.a.weight
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) * self.scale + self.steps


def weight_table(module: nn.Module, *without: str) -> Any:
    """The (name, dtype, shape) of each tensor in the state_dict of `module`, except the names `without`."""
    named = module.state_dict().items()
    return tuple((n, str(v.dtype).removeprefix("torch."), tuple(v.shape)) for n, v in named if n not in without)


def error_of(traced: Callable[..., Any], job_of: Callable[..., Any], module: nn.Module, weights: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(module, job_of(SHAPES, weights=weights))
    assert caught.value.code == "weights" and caught.value.line == 4
    return caught.value


def test_tied_weights_are_one_input_and_an_alias(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    result = traced(Tied(), job_of(SHAPES))
    assert [entry["name"] for entry in result.interface["weights"]] == [
        "a.weight",
        "a.bias",
        "b.bias",
        "scale",
        "steps",
    ]
    assert result.interface["aliases"] == {"b.weight": "a.weight"}
    assert traced(Tied(tie=False), job_of(SHAPES)).graph != result.graph


def test_weights_that_the_graph_does_not_use_are_left_out(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    result = traced(Tied(), job_of(SHAPES))
    assert result.interface["unused"] == ["unused.weight", "unused.bias"]
    assert Program.from_bytes(result.program).weights == 5


def test_values_are_in_the_order_of_their_slots(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    module = Tied()
    result = traced(module, job_of(SHAPES))
    expected = [module.a.weight, module.a.bias, module.b.bias, module.scale, module.steps]
    assert [slot for slot, _ in result.weights] == [0, 1, 2, 3, 4]
    assert all(
        torch.equal(value, expected_value) for (_, value), expected_value in zip(result.weights, expected, strict=True)
    )


def test_with_a_weights_file_only_non_persistent_values_are_stored(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = Tied()
    result = traced(module, job_of(SHAPES, weights=weight_table(module)))
    assert [slot for slot, _ in result.weights] == [4]
    assert not result.interface["weights"][4]["persistent"]


def test_accepts_a_file_with_one_name_of_a_tied_weight(traced: Callable[..., Any], job_of: Callable[..., Any]) -> None:
    module = Tied()
    by_first = traced(module, job_of(SHAPES, weights=weight_table(module, "b.weight"))).interface
    assert by_first["weights"][0]["name"] == "a.weight" and by_first["aliases"] == {"b.weight": "a.weight"}
    by_second = traced(module, job_of(SHAPES, weights=weight_table(module, "a.weight"))).interface
    assert by_second["weights"][0]["name"] == "b.weight" and by_second["aliases"] == {"a.weight": "b.weight"}


def test_rejects_a_file_with_other_names_shapes_or_dtypes(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = Tied()
    table = {name: (dtype, shape) for name, dtype, shape in weight_table(module)}
    table["a.biass"] = table.pop("a.bias")
    table["scale"] = ("float16", (4,))
    table["unused.bias"] = ("float32", (3,))
    del table["a.weight"], table["b.weight"]
    text = error_of(traced, job_of, module, tuple((n, d, s) for n, (d, s) in table.items())).text
    assert "missing: a.weight" in text
    assert "missing: a.bias (nearest: a.biass)" in text
    assert "unexpected: a.biass (nearest: a.bias)" in text
    assert "scale: the file has float16, the model float32" in text
    assert "unused.bias: the file has shape [3], the model [2]" in text


def test_the_graph_does_not_depend_on_whether_values_come_from_a_file(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = Tied()
    assert traced(module, job_of(SHAPES)).graph == traced(module, job_of(SHAPES, weights=weight_table(module))).graph


def test_two_parameters_with_the_same_memory_are_one_weight(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = Tied(tie=False)
    module.b.weight = nn.Parameter(module.a.weight.data)
    assert traced(module, job_of(SHAPES)).interface["aliases"] == {"b.weight": "a.weight"}


def test_views_of_different_parts_of_one_memory_are_two_weights(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = Tied(tie=False)
    both = torch.randn(8, 4)
    module.a.weight, module.b.weight = nn.Parameter(both[:4]), nn.Parameter(both[4:])
    result = traced(module, job_of(SHAPES))
    assert result.interface["aliases"] == {} and torch.equal(result.weights[2][1], both[4:])


class KeepsWeight(nn.Module):
    """A module that also keeps its weight, or a view of the weight, in a plain attribute."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.kept = [self.l.weight.data[:1] if view else self.l.weight.data]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) + x @ self.kept[0].t()


def test_a_plain_attribute_that_is_a_weight_is_not_a_constant(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    result = traced(KeepsWeight(view=False), job_of(SHAPES))
    assert "constant" not in result.graph and len(result.weights) == 2


def test_rejects_a_weights_file_for_a_module_with_a_view_of_a_weight(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    module = KeepsWeight(view=True)
    assert "constant" in traced(module, job_of(SHAPES)).graph
    assert "keeps a view" in error_of(traced, job_of, module, weight_table(module)).text


def test_rejects_a_weights_file_for_a_module_with_a_view_of_a_weight_as_an_unsaved_buffer(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    """``load_state_dict`` would change the buffer, but an engine would keep its first values."""

    class KeepsBuffer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)
            self.register_buffer("transposed", self.l.weight.detach().t(), persistent=False)
            self.eval()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.l(x) + x @ self.transposed

    module = KeepsBuffer()
    assert len(traced(module, job_of(SHAPES)).weights) == 3
    assert "the non-persistent buffer 'transposed'" in error_of(traced, job_of, module, weight_table(module)).text


def test_rejects_a_weight_that_consists_of_other_tensors(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    """``torchao.quantization.quantize_`` creates such weights. Only the other tensors have memory."""
    module = nn.Sequential(nn.Linear(4, 4)).eval()
    module[0].weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)))
    with pytest.raises(SourceError, match=r"the weight '0\.weight' of the model is a TwoTensor") as caught:
        traced(module, job_of(SHAPES))
    assert caught.value.hint is not None and "unwrap_tensor_subclass" in caught.value.hint


def test_rejects_a_weights_file_for_a_module_that_changes_loading(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    class LoadsItself(Tied):
        def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
            super()._load_from_state_dict(*args, **kwargs)

    model = LoadsItself()
    error = error_of(traced, job_of, model, weight_table(model))
    assert "change what they load or save: the model (LoadsItself)" in error.text


def test_rejects_a_module_on_the_meta_device_also_with_a_weights_file(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    """The file has no value for the buffer ``steps``, which state_dict does not save."""
    with torch.device("meta"):
        module = Tied()
    with pytest.raises(SourceError, match="is on the meta device") as caught:
        traced(module, job_of(SHAPES, weights=weight_table(Tied())))
    assert "create the model on the CPU, with any values" in str(caught.value.hint)


def test_the_proof_works_with_uninitialized_weights_that_a_file_will_fill(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((4, 4), float("nan")))
            self.eval()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w if x.shape[0] == 1 else x @ self.w * 2

    with pytest.raises(SourceError) as caught:
        traced(Branch(), job_of(SHAPES, weights=weight_table(Branch())))
    assert caught.value.code == "frozen-branch"


_INF, _NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "numbers",
    [
        [0.0, 0.0],
        [0.0, 2.0],
        [2.0, -2.0],  # their sum is 0
        [400.0] * 200,  # their sum is above the largest float16
        [_NAN, 2.0],
        [_INF, -_INF],  # float8 has no infinity
        [2.0, _INF],
    ],
)
def test_weights_without_useful_values_are_filled(dtype: torch.dtype, numbers: list[float]) -> None:
    module = nn.Module()
    module.register_buffer("w", torch.tensor(numbers).to(dtype))
    before = module.w.double()
    fill_unset_weights(ModuleWeights(module))
    after = module.w.double()
    assert torch.equal(after, before) == bool(before.isfinite().all() and before.any())
    assert after.isfinite().all() and after.any()


def test_a_forked_process_stores_the_weights(job_of) -> None:
    calls_in_this_process: list[int] = []

    def store(weights):
        calls_in_this_process.append(1)
        return [[os.getpid(), list(value.shape)] for value in weights]

    model, job = torch.nn.Linear(4, 3).eval(), job_of({"x": ((1, 4), (2, 4), (3, 4))})
    with torch.no_grad():
        traced = trace_module(model, job, Frames(FileOwners(), Path(__file__).parents[4]), store_weights=store)
    assert traced.stored is not None and calls_in_this_process == []
    assert [shape for _, shape in traced.stored] == [list(value.shape) for _, value in traced.weights]
    assert os.getpid() not in {process for process, _ in traced.stored}


def test_the_caller_gets_weights_that_could_not_be_stored(job_of) -> None:
    def store(weights):
        raise OSError("the disk is full")

    model, job = torch.nn.Linear(4, 3).eval(), job_of({"x": ((1, 4), (2, 4), (3, 4))})
    with torch.no_grad():
        traced = trace_module(model, job, Frames(FileOwners(), Path(__file__).parents[4]), store_weights=store)
    assert traced.stored is None
    assert len(traced.weights) == 2
