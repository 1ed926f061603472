"""A verification locates the first operator at which a wrong conversion differs from PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable

import onnx
import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import ConvertedModel, FunctionModule, convert_module, replace_job
from trtbuild.core.model.comparisons import Place
from trtbuild.stages.verify import locating
from trtbuild.stages.verify.run import verify


def place(converted: ConvertedModel) -> Place:
    (part,) = verify(converted.job, converted.read).partitions
    assert part.status == "wrong"
    assert part.place is not None
    return part.place


def rename(old: str, new: str, index: int = 0) -> Callable[[onnx.GraphProto], None]:
    """Return a function that changes an ONNX graph: the node `index` of the operator type `old` gets the type `new`."""

    def change(graph: onnx.GraphProto) -> None:
        [node for node in graph.node if node.op_type == old][index].op_type = new

    return change


@pytest.fixture(scope="module")
def deep() -> ConvertedModel:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    return convert_module(nn.Sequential(*blocks).eval(), [(("b", 8), "float32")])


@pytest.mark.parametrize("index", range(4))
def test_the_first_wrong_operator_is_located_with_its_module(deep: ConvertedModel, index: int) -> None:
    located = place(deep.altered(rename("Tanh", "Sigmoid", index)))
    assert located.first.operator == "aten.tanh.default"
    assert located.first.module == f"{index}.1"
    assert located.since == located.first and 0.1 < (located.error or 0.0) < 10


def test_the_place_does_not_depend_on_the_size_of_groups(deep: ConvertedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = deep.altered(rename("Tanh", "Sigmoid", 2))
    expected = place(altered)
    monkeypatch.setattr(locating, "_GROUP_BYTES", 1)
    assert place(altered) == expected


def test_a_transposed_square_matrix_is_located(deep: ConvertedModel) -> None:
    def transpose_weight(graph: onnx.GraphProto) -> None:
        node = [node for node in graph.node if node.op_type == "Gemm"][1]
        (transposes,) = [attribute for attribute in node.attribute if attribute.name == "transB"]
        transposes.i = 1 - transposes.i

    located = place(deep.altered(transpose_weight))
    assert (located.first.module, located.first.operator) == ("1.0", "aten.linear.default")


def test_the_wrong_branch_of_two_is_located() -> None:
    def two(_: object, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + torch.sigmoid(x * 2) * torch.cos(x)

    converted = convert_module(FunctionModule(two), [(("b", 8), "float32")])
    located = place(converted.altered(rename("Cos", "Sin")))
    assert located.first.operator == "aten.cos.default"


def test_a_different_inner_value_without_effect_is_not_located() -> None:
    """If the ONNX model has tanh before the transpose, not after it, only the value between these two nodes differs."""

    def turned(_: object, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.transpose(0, 1)).sum(0) + torch.cos(x).sum(1)

    converted = convert_module(FunctionModule(turned), [((8, 8), "float32")])

    def swap_and_break(graph: onnx.GraphProto) -> None:
        """Swap Tanh and Transpose, which changes no result. Then replace Cos by Sin, which is a fault."""
        (transpose,) = [node for node in graph.node if node.op_type == "Transpose"]
        (tanh,) = [node for node in graph.node if node.op_type == "Tanh"]
        transpose.op_type, tanh.op_type = "Tanh", "Transpose"
        tanh.attribute.extend(transpose.attribute)
        del transpose.attribute[:]
        (cos,) = [node for node in graph.node if node.op_type == "Cos"]
        cos.op_type = "Sin"

    located = place(converted.altered(swap_and_break))
    assert located.first.operator == "aten.cos.default"


def test_a_call_without_a_node_extends_the_located_range(deep: ConvertedModel) -> None:
    """If the ONNX optimizer has removed all nodes of a call, the fault may be in this call."""
    origins = [(name, call) for name, call in json.loads(deep.blobs[deep.job.origins[deep.graph]])]
    calls = [node for node in deep.lowered.graph.nodes if node.op == "call_function"]
    tanh = [index for index, node in enumerate(calls) if "tanh" in str(node.target)]
    fewer = json.dumps([(name, call) for name, call in origins if call != tanh[1]]).encode()
    altered = deep.altered(rename("Tanh", "Sigmoid", 1))
    altered = replace_job(altered, origins={deep.graph: altered.blobs.keep(fewer)})
    located = place(altered)
    assert (located.since.module, located.first.module) == ("1.1", "2.0")


def test_many_residual_blocks_without_nodes_are_searched_without_following_each_path() -> None:
    """Each block doubles the number of paths, so a search that follows each path would need 2^60 steps."""

    def residual(_: object, x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = x + torch.cos(x)
        return torch.tanh(x)

    converted = convert_module(FunctionModule(residual), [(("b", 8), "float32")])
    origins = json.loads(converted.blobs[converted.job.origins[converted.graph]])
    last = max(call for _, call in origins)
    only_tanh = json.dumps([(name, call) for name, call in origins if call == last]).encode()
    altered = converted.altered(rename("Tanh", "Sigmoid"))
    located = place(replace_job(altered, origins={converted.graph: altered.blobs.keep(only_tanh)}))
    assert located.first.operator == "aten.tanh.default"
    assert located.since.operator == "aten.cos.default"


def test_an_operator_with_several_outputs_is_located() -> None:
    def split(_: object, x: torch.Tensor) -> list[torch.Tensor]:
        a, b = torch.split(torch.tanh(x), [3, 5], dim=-1)
        return [a * 2, torch.sigmoid(b)]

    converted = convert_module(FunctionModule(split), [(("b", 8), "float32")])
    assert place(converted.altered(rename("Sigmoid", "Tanh"))).first.operator == "aten.sigmoid.default"
    assert place(converted.altered(rename("Tanh", "Erf"))).first.operator == "aten.tanh.default"
