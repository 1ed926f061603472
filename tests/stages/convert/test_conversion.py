"""A conversion computes the results of the model. It has no names of the model and no values of weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.conversion import convert, untranslatable_calls
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import program_text

#: Models that can be converted to opset 17, the opset of TensorRT 8.6.
_OPSET_17_MODELS = ["linear", "conv", "norms", "encoder", "attention", "tied", "pool_pad"]


def _assert_equal(results: list[np.ndarray], expected_tensors: list[torch.Tensor], tolerance: float) -> None:
    assert len(results) == len(expected_tensors)
    for value, expected in zip(results, expected_tensors, strict=True):
        assert value.shape == tuple(expected.shape)
        assert str(value.dtype) == str(expected.dtype).removeprefix("torch.")
        np.testing.assert_allclose(value.astype(np.float64), expected.double().numpy(), atol=tolerance, rtol=tolerance)


def test_equals_eager_at_min_opt_and_max(case: str, lowered_case: Any, converted: Any, onnxruntime_run: Any) -> None:
    model = lowered_case(case)
    for at in ("min", "opt", "max"):
        tensors = model.tensors(at)
        results = onnxruntime_run(converted(case).model, model.weights(), tensors)
        _assert_equal(results, model.eager(tensors), model.case.tolerance)


@pytest.mark.parametrize("name", _OPSET_17_MODELS)
def test_equals_eager_in_the_opset_of_tensorrt_8(
    name: str, lowered_case: Any, converted: Any, onnxruntime_run: Any
) -> None:
    model = lowered_case(name)
    proto = onnx.ModelProto.FromString(converted(name, 17).model)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 17)]
    assert len(converted(name, 17).origins) > 0
    for at in ("min", "max"):
        tensors = model.tensors(at)
        results = onnxruntime_run(converted(name, 17).model, model.weights(), tensors)
        _assert_equal(results, model.eager(tensors), model.case.tolerance)


def test_names_are_canonical_and_the_model_has_no_metadata(case: str, lowered_case: Any, converted: Any) -> None:
    proto = onnx.ModelProto.FromString(converted(case).model)
    onnx.checker.check_model(with_inline_weights(converted(case).model, lowered_case(case).weights()), full_check=True)
    graph = proto.graph
    assert [value.name for value in graph.input] == [f"i{k}" for k in range(len(lowered_case(case).case.inputs))]
    assert [value.name for value in graph.output] == [
        f"o{k}" for k in range(len(lowered_case(case).program.output_nodes))
    ]
    assert {output for node in graph.node for output in node.output} >= {value.name for value in graph.output}
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    nodes = lowered_case(case).program.weight_nodes
    for tensor in external:
        value = nodes[int(tensor.name.removeprefix("w"))].meta["val"]
        assert list(tensor.dims) == list(value.shape)
        assert not tensor.raw_data
    assert all(tensor.name.startswith(("w", "c")) for tensor in graph.initializer)
    assert not graph.value_info and not proto.metadata_props and not proto.functions and not proto.producer_name
    assert not any(node.metadata_props or node.doc_string for node in graph.node)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 20)]


def test_every_node_except_identities_has_an_origin(case: str, lowered_case: Any, converted: Any) -> None:
    conversion = converted(case)
    calls = [node for node in lowered_case(case).program.graph.nodes if node.op == "call_function"]
    names = {node.name for node in onnx.ModelProto.FromString(conversion.model).graph.node}
    origins = dict(conversion.origins)
    assert all(0 <= call < len(calls) for call in origins.values())
    identities = {n.name for n in onnx.ModelProto.FromString(conversion.model).graph.node if n.op_type == "Identity"}
    assert names - origins.keys() <= identities


def test_origins_are_the_right_calls(lowered_case: Any, converted: Any) -> None:
    calls = [str(n.target) for n in lowered_case("encoder").program.graph.nodes if n.op == "call_function"]
    origins = dict(converted("encoder").origins)
    aten_by_onnx_operator = {
        n.op_type: calls[origins[n.name]] for n in onnx.ModelProto.FromString(converted("encoder").model).graph.node
    }
    assert aten_by_onnx_operator["LayerNormalization"] == "aten.layer_norm.default"
    assert aten_by_onnx_operator["Gelu"] == "aten.gelu.default"
    assert aten_by_onnx_operator["Softmax"] == "aten.scaled_dot_product_attention.default"
    assert aten_by_onnx_operator["Expand"] == "aten.expand.default"


@pytest.mark.parametrize("name", ["encoder", "implicit_promotion", "sizes", "cond"])
def test_converting_is_repeatable_and_does_not_change_the_program(name: str, lowered_case: Any, converted: Any) -> None:
    program = lowered_case(name).program
    before, size = program_text(program), len(program.graph.nodes)
    assert convert(program, 20) == converted(name)
    assert (program_text(program), len(program.graph.nodes)) == (before, size)


def test_a_stored_program_converts_to_the_same_bytes(lowered_case: Any, converted: Any) -> None:
    for name in ("encoder", "cond", "positions"):
        assert convert(Program.from_bytes(lowered_case(name).program.to_bytes()), 20) == converted(name)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.z, self.n1, self.val_3 = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.z(image))
        other = torch.relu(self.n1(hidden))
        return self.val_3(other)


def test_zero_and_random_weights_give_the_same_bytes_and_the_right_results(lowered: Any, onnxruntime_run: Any) -> None:
    zero, random, x = Mlp(), Mlp(), torch.randn(3, 8)
    for parameter in zero.parameters():
        nn.init.zeros_(parameter)
    dims = ({0: Dim("b", min=1, max=8)},)
    zero_program, _ = lowered(zero, (x,), dims)
    random_program, slots = lowered(random, (x,), dims)
    model = convert(zero_program, 20).model
    assert model == convert(random_program, 20).model
    weights = {f"w{k}": random.state_dict()[slot.name].numpy() for k, slot in enumerate(slots)}
    (result,) = onnxruntime_run(model, weights, [x])
    np.testing.assert_allclose(result, random(x).detach().numpy(), atol=1e-5)


def test_names_of_modules_inputs_and_dims_and_the_example_have_no_effect(lowered: Any) -> None:
    program, _ = lowered(Mlp(), (torch.randn(3, 8),), ({0: Dim("b", min=1, max=8)},))
    renamed, _ = lowered(Renamed(), (torch.randn(6, 8),), ({0: Dim("zz", min=1, max=8)},))
    assert convert(program, 20) == convert(renamed, 20)


def test_dims_are_named_by_position_not_by_torchs_names(lowered: Any) -> None:
    def converted_model(first: str, second: str) -> bytes:
        dims = {0: Dim(first, min=1, max=8), 1: Dim(second, min=2, max=16)}
        program, _ = lowered(nn.Linear(8, 8), (torch.randn(3, 5, 8),), (dims,))
        return convert(program, 20).model

    assert converted_model("a", "b") == converted_model("z", "c")
    shape = onnx.ModelProto.FromString(converted_model("a", "b")).graph.input[0].type.tensor_type.shape
    assert [size.dim_param for size in shape.dim] == ["d0", "d1", ""]


def test_another_number_in_the_model_gives_other_bytes(lowered: Any) -> None:
    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    factors = (2.0, 3.0, -0.0, 0.0)
    models = {convert(lowered(Scale(factor), (torch.randn(3, 8),), None)[0], 20).model for factor in factors}
    assert len(models) == 4


_SCRIPT = """
import hashlib, torch
from torch.export import Dim, export
from torch import nn
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.program.functional import functional
from trtbuild.stages.program.translations import decomposition_table

def digest():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True).eval()
    dims = {0: Dim("b", min=1, max=8), 1: Dim("s", min=2, max=16)}
    with torch.no_grad():
        exported = export(layer, (torch.randn(3, 5, 16),), dynamic_shapes=(dims,))
    program, _ = functional(exported.run_decompositions(decomposition_table()))
    return hashlib.sha256(convert(program, 20).model).hexdigest()
"""


def test_the_bytes_do_not_depend_on_the_process_hash_seed_path_locale_or_time_zone(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(_SCRIPT, namespace)
    script = tmp_path / "elsewhere.py"
    script.write_text(_SCRIPT + "print(digest())")
    env = {**os.environ, "PYTHONHASHSEED": "3", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo", "USER": "somebody"}
    completed = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert completed.stdout.split() == [namespace["digest"]()]


def test_rejects_an_operator_without_translation_and_names_its_calls(lowered: Any) -> None:
    class Distance(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.cdist(x + 1, y))

    program, _ = lowered(Distance(), (torch.randn(2, 5, 8), torch.randn(2, 4, 8)), None)
    ((index, name),) = untranslatable_calls(program)
    assert name == "aten._cdist_forward.default"
    with pytest.raises(ConversionRefused, match=r"aten\._cdist_forward") as refused:
        convert(program, 20)
    assert refused.value.nodes == (index,)
    assert "torch_executed_ops" in str(refused.value)


def test_rejects_a_branch_with_a_call_whose_translation_is_wrong(lowered: Any) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: torch.erfc(y) * 2, lambda y: y + 1, (x,))

    program, _ = lowered(Branches(), (torch.randn(2, 5),), None)
    ((index, name),) = untranslatable_calls(program)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert (calls[index].target, name) == (torch.ops.higher_order.cond, "aten.erfc.default")


def test_rejects_an_operator_that_an_older_opset_lacks_and_names_its_call(lowered: Any) -> None:
    class Bits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) & 3

    program, _ = lowered(Bits(), (torch.arange(8),), None)
    assert convert(program, 20).model
    with pytest.raises(
        ConversionRefused, match="BitwiseAnd cannot be written for a parser of ONNX opset 17"
    ) as refused:
        convert(program, 17)
    assert refused.value.nodes == (1,)
    with pytest.raises(ConversionRefused, match="only from 18 to 17, not from 18 to 16"):
        convert(program, 16)


def test_an_exception_of_the_exporter_is_a_refusal(lowered_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: object) -> None:
        raise IndexError("deep inside\nand more")

    monkeypatch.setattr("trtbuild.stages.convert.conversion.optimize", fails)
    with pytest.raises(ConversionRefused, match=r"exporter failed: IndexError: deep inside$") as refused:
        convert(lowered_case("linear").program, 20)
    assert refused.value.nodes == ()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], lowered_case: Any) -> None:
    convert(lowered_case("encoder").program, 20)
    convert(lowered_case("norms").program, 17)
    assert capfd.readouterr() == ("", "")
