"""The decision which operators compute in half precision. Layers that are equal in the model stay equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

from trtbuild.stages.lower.half_precision.dtypes import repeat_of
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.program.functional import Program


def layer_text(program: Program, prefix: str) -> list[str]:
    """Operator, operands and dtypes of each node of a module, as text. Operands from other modules are dtypes only."""
    inside = [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and f"{path_of(node)}.".startswith(f"{prefix}.")
    ]
    position = {node: index for index, node in enumerate(inside)}

    def text(node: torch.fx.Node) -> str:
        return f"%{position[node]}" if node in position else f"outside:{getattr(node.meta['val'], 'dtype', 'int')}"

    def dtypes(node: torch.fx.Node) -> list[object]:
        return [getattr(value, "dtype", None) for value in pytree.tree_leaves(node.meta["val"])]

    return [f"{n.target}{torch.fx.map_arg(n.args, text)}{dict(n.kwargs)} {dtypes(n)}" for n in inside]


_REPEATED_LAYERS = [
    ("pre_norm", "layers", 3),
    ("post_norm", "layers", 3),
    ("bert", "encoder.layer", 2),
    ("vit", "encoder.layer", 2),
]


@pytest.mark.parametrize(("name", "prefix", "count"), _REPEATED_LAYERS)
def test_equal_layers_stay_equal_including_the_first_and_the_last(
    lowered: Any, name: str, prefix: str, count: int
) -> None:
    program = lowered(name, "float16")
    layers = [layer_text(program, f"{prefix}.{index}") for index in range(count)]
    if not layers[0]:  # the prefix differs between versions of transformers
        layers = [layer_text(program, f"layers.{index}") for index in range(count)]
    assert layers[0] and all(layer == layers[0] for layer in layers)


class SquaresBeforeMean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return (y * y).mean(-1) + 1


class MovesBetweenFloat32(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).softmax(-1).unsqueeze(0).transpose(1, 2).squeeze(0)
        return y.sum(-1)


class MovesBetweenProducts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu().reshape(2, 8).t() @ torch.ones(2, 3)


def _dtypes(program: Program) -> dict[str, torch.dtype]:
    """Operator, such as ``matmul`` → the dtype of its result. Casts are left out."""
    return {
        str(node.target).split(".")[1]: node.meta["val"].dtype
        for node in program.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta["val"], torch.Tensor)
        and "_to_copy" not in str(node.target)
    }


def test_arithmetic_that_only_float32_reads_is_float32(lower_module: Any) -> None:
    _, program = lower_module(SquaresBeforeMean(), (torch.randn(4, 4),), "float16")
    assert _dtypes(program) == {
        "matmul": torch.float16,
        "mul": torch.float32,
        "mean": torch.float32,
        "add": torch.float32,
    }


def test_data_movement_between_float32_operators_needs_no_casts(lower_module: Any) -> None:
    _, program = lower_module(MovesBetweenFloat32(), (torch.randn(4, 4),), "float16")
    casts = [node for node in program.graph.nodes if "_to_copy" in str(node.target)]
    assert len(casts) == 2  # the input to float16, the product to float32
    assert _dtypes(program)["transpose"] is torch.float32


def test_data_movement_after_half_operators_is_half(lower_module: Any) -> None:
    _, program = lower_module(MovesBetweenProducts(), (torch.randn(4, 4),), "bfloat16")
    assert _dtypes(program)["reshape"] is torch.bfloat16
    assert _dtypes(program)["relu"] is torch.bfloat16


class MaskedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        return (y @ y.transpose(1, 2) + mask).softmax(-1) @ x


class MaskAsInput(nn.Module):
    """A model that gets an additive mask as an input, so the numbers of the mask are unknown before run time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MaskedLayer(), MaskedLayer()])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask[:, None, :])
        return x


def test_a_mask_that_is_an_input_stays_float32_up_to_the_softmax(lower_module: Any) -> None:
    mask = torch.zeros(2, 3)
    mask[1] = torch.finfo(torch.float32).min  # masks all positions of this sample, and eager gives them equal weights
    traced, program = lower_module(MaskAsInput(), (torch.randn(2, 3, 4), mask), "float16")
    value, expected = traced.run(program)[0], traced.eager()[0]
    assert not value.isnan().any()
    assert (value - expected).abs().max() / expected.abs().max() < 5e-3
    assert layer_text(program, "layers.0") == layer_text(program, "layers.1")


def test_a_repeated_module_is_the_innermost_module_with_a_number() -> None:
    node = torch.fx.Graph().placeholder("x")
    for path, expected in (("", ""), ("head", ""), ("layers.3.attention.out", "layers.3"), ("a.0.mlp.2", "a.0.mlp.2")):
        node.meta["nn_module_stack"] = {"key": (path, "class")}
        assert repeat_of(node) == expected
