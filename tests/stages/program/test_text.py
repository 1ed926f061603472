"""Special cases of the canonical text. `test_soundness` tests the general rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.functional import functional as to_functional
from trtbuild.stages.program.text import program_text, tensor_digest


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def program_of(module: nn.Module, *inputs: torch.Tensor, dynamic: Any = None) -> Program:
    with torch.no_grad():
        exported = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic, strict=False)
        return to_functional(exported.run_decompositions({}))[0]


def text_of(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: Any = None) -> str:
    inputs = inputs or (torch.ones(4, 6), torch.ones(4, 6))
    return program_text(program_of(Call(function), *inputs, dynamic=dynamic))


def test_data_dependent_sizes_are_written_without_torchs_names() -> None:
    def select(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[x > 0].view(-1) * y.shape[0]

    x, y = torch.ones(4, 6), torch.ones(4, 6)
    text = text_of(select, x, y, dynamic={"x": {0: Dim("a", min=2, max=8)}, "y": {0: Dim("b", min=2, max=8)}})

    class Renamed(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return select(left, right)

    dims = {"left": {0: Dim("c", min=2, max=8)}, "right": {0: Dim("d", min=2, max=8)}}
    assert program_text(program_of(Renamed(), x, y, dynamic=dims)) == text
    assert '"data", 0' in text and "Runtime assertion" not in text


def test_a_digest_covers_dtype_shape_and_logical_bytes() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert tensor_digest(x) == tensor_digest(x.t().contiguous().t())
    assert len({tensor_digest(v) for v in (x, x.reshape(3, 2), x.view(torch.int32), x.double(), x + 1)}) == 5
    assert tensor_digest(torch.tensor([0.0])) != tensor_digest(torch.tensor([-0.0]))
    complex_tensor = torch.tensor([1 + 2j])
    assert tensor_digest(complex_tensor.conj()) == tensor_digest(torch.tensor([1 - 2j]))
    for value in (torch.empty(0), torch.tensor(True), torch.ones(2, dtype=torch.bfloat16)):
        assert len(tensor_digest(value)) == 64


def test_the_text_can_contain_the_digest_of_the_implementation_of_a_custom_operator() -> None:
    @torch.library.custom_op("trtbuild_text_test::shift", mutates_args=())
    def shift(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    shift.register_fake(lambda x: torch.empty_like(x))
    program = program_of(Call(lambda x, y: shift(x)), torch.ones(4, 6), torch.ones(4, 6))
    texts = {program_text(program, lambda name, digest=digest: digest) for digest in ("one", "other")}
    assert len(texts) == 2 and all("trtbuild_text_test.shift.default@" in text for text in texts)
