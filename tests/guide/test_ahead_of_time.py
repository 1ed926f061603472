"""Examples from Torch-TensorRT's guides, compiled ahead of time: static shapes, ranges, Dims, keyword arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim, export

from tests.guide.conftest import assert_equals_eager, partitions
from trtbuild import Input


def image(batch: int = 2, height: int = 16, width: int = 16) -> torch.Tensor:
    return torch.randn(batch, 3, height, width)


def test_a_static_shape_accepts_no_other_size(compile_module: Any, conv_net: Any) -> None:
    model = compile_module(conv_net, [Input(shape=(2, 3, 16, 16), dtype=torch.float32)])
    assert_equals_eager(model, conv_net, image())
    with pytest.raises(ValueError, match="is 3, and must be 2"):
        model(image(3))


def test_an_example_tensor_can_declare_an_input(compile_module: Any, conv_net: Any) -> None:
    assert_equals_eager(compile_module(conv_net, [image()]), conv_net, image())


def test_all_sizes_of_a_range_are_accepted_and_no_others(compile_module: Any, conv_net: Any) -> None:
    ranged = Input(min_shape=(1, 3, 16, 16), opt_shape=(4, 3, 16, 16), max_shape=(8, 3, 16, 16), dtype=torch.float32)
    model = compile_module(conv_net, inputs=[ranged])
    assert partitions(model) == ["tensorrt"]
    for batch in (1, 3, 4, 8):
        assert_equals_eager(model, conv_net, image(batch))
    with pytest.raises(ValueError, match="is 9, and allowed is 1 to 8"):
        model(image(9))


def test_a_dim_of_torch_export_declares_a_range(compile_module: Any, conv_net: Any) -> None:
    batch = Dim("batch", min=1, max=8)
    exported = export(conv_net, (image(),), dynamic_shapes={"x": {0: batch}})
    model = compile_module(exported, [image()])
    for rows in (1, 2, 8):
        assert_equals_eager(model, conv_net, image(rows))


def test_a_dim_of_torch_export_can_be_a_multiple(compile_module: Any, conv_net: Any) -> None:
    half = Dim("half", min=4, max=16)
    exported = export(conv_net, (image(2, 32, 16),), dynamic_shapes={"x": {2: 2 * half}})
    model = compile_module(exported)
    for height in (8, 20, 32):
        assert_equals_eager(model, conv_net, image(2, height))
    with pytest.raises(ValueError, match="must be a multiple of 2"):
        model(image(2, 9))


def test_several_dims_can_be_dynamic(compile_module: Any, conv_net: Any) -> None:
    ranged = Input(min_shape=(1, 3, 8, 8), opt_shape=(2, 3, 16, 16), max_shape=(4, 3, 32, 24))
    model = compile_module(conv_net, [ranged])
    for shape in ((1, 8, 8), (2, 16, 16), (4, 32, 24), (3, 9, 23)):
        assert_equals_eager(model, conv_net, image(*shape))


class MaskedAttention(torch.nn.Module):
    """Takes a mask as a keyword argument. The mask has the length of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = torch.softmax(self.linear(x) @ x.transpose(1, 2) + mask[:, None, :], -1)
        return {"scores": scores, "values": scores @ x}


def test_keyword_arguments_can_share_dims_with_positional_arguments(compile_module: Any) -> None:
    eager = MaskedAttention().eval()
    model = compile_module(
        eager,
        [Input(min_shape=(1, 2, 8), opt_shape=(2, 6, 8), max_shape=(4, 12, 8))],
        kwarg_inputs={"mask": Input(min_shape=(1, 2), opt_shape=(2, 6), max_shape=(4, 12))},
        dims={"batch": ["x.0", "mask.0"], "length": ["x.1", "mask.1"]},
    )
    for batch, length in ((1, 2), (2, 6), (4, 12), (3, 5)):
        assert_equals_eager(model, eager, torch.randn(batch, length, 8), mask=torch.randn(batch, length))
    with pytest.raises(ValueError, match="input 'mask' is missing"):
        model(torch.randn(2, 6, 8))
    with pytest.raises(ValueError, match=r"dim 'length' is 6 in x\.1 and 5 in mask\.1"):
        model(torch.randn(2, 6, 8), mask=torch.randn(2, 5))
