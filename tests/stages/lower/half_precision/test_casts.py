"""Each cast belongs to the right module.

A repeated module (with a number in its path: ``layers.3``) never reads two equal casts, and never returns float32 values.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trtbuild.stages.lower.half_precision.dtypes import repeat_of
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.program.functional import Program


def _casts(program: Program) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if str(node.target) == "aten._to_copy.default"]


@pytest.mark.parametrize("name", ["pre_norm", "post_norm", "bert", "conv", "rms_norm"])
def test_a_repeated_module_never_reads_two_equal_casts(lowered: Any, name: str) -> None:
    casts_and_readers = [
        (cast.args[0], cast.kwargs["dtype"], module)
        for cast in _casts(lowered(name, "float16"))
        for module in {repeat_of(user) for user in cast.users}
    ]
    assert casts_and_readers and len(casts_and_readers) == len(set(casts_and_readers))


@pytest.mark.parametrize("name", ["pre_norm", "post_norm", "bert", "vit"])
def test_no_float32_value_leaves_a_repeated_module(lowered: Any, name: str) -> None:
    for node in lowered(name, "float16").graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            assert {repeat_of(user) for user in node.users} <= {repeat_of(node)}


def test_the_cast_of_a_weight_belongs_to_the_module_that_reads_the_weight(lowered: Any) -> None:
    program = lowered("pre_norm", "float16")
    weights = set(program.weight_nodes)
    module_of_cast = {cast.args[0].name: path_of(cast) for cast in _casts(program) if cast.args[0] in weights}
    assert module_of_cast["p_layers_1_qkv_weight"] == "layers.1.qkv"
    assert not any("norm" in name for name in module_of_cast)  # weights of norms are not cast


def test_the_casts_of_inputs_and_outputs_belong_to_no_submodule(lowered: Any) -> None:
    program = lowered("post_norm", "float16")
    inputs = set(program.input_nodes)
    assert [path_of(cast) for cast in _casts(program) if cast.args[0] in inputs] == [""]
    assert [path_of(node) for node in program.output_nodes] == [""]


class AppliesLinearTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self.lin(x) * 2.0)


def test_a_weight_that_is_read_twice_is_cast_once(lower_module: Any) -> None:
    traced, program = lower_module(AppliesLinearTwice(), (torch.randn(2, 4),), "float16")
    sources = [cast.args[0] for cast in _casts(program)]
    assert set(program.weight_nodes) <= set(sources) and len(sources) == len(set(sources))
    assert torch.allclose(traced.run(program)[0], traced.eager()[0], atol=1e-2)
