"""The internal functions of torch that trtbuild uses. If torch changes one, a test fails."""

from __future__ import annotations

import inspect
import logging
import operator
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from trtbuild.stages.program import translations
from trtbuild.stages.program.functional import functional
from trtbuild.stages.program.translations import (
    OPSETS,
    TranslationFailed,
    decomposition_table,
    has_translation,
    promote_types,
    remove_assertions,
    silence_exporter,
    translate,
)


def test_the_exporter_has_the_internal_functions_that_are_used() -> None:
    from torch.onnx._internal.exporter import (
        _constants,
        _core,
        _decomp,
        _dispatching,
        _errors,
        _fx_passes,
        _registration,
    )

    assert OPSETS[0] == _constants.TORCHLIB_OPSET
    parameters = inspect.signature(_core._exported_program_to_onnx_program).parameters
    assert list(parameters) == ["exported_program", "registry", "lower"]
    assert list(inspect.signature(_registration.ONNXRegistry.from_torchlib).parameters) == ["opset_version"]
    assert list(inspect.signature(_dispatching.dispatch).parameters) == ["node", "registry"]
    assert list(inspect.signature(_decomp.get_onnx_implemented_overloads).parameters) == ["registry"]
    assert list(inspect.signature(_decomp.create_onnx_friendly_decomposition_table).parameters) == [
        "onnx_registered_ops"
    ]
    assert list(inspect.signature(_fx_passes.insert_type_promotion_nodes).parameters) == ["graph_module"]
    assert issubclass(_errors.DispatchError, _errors.ConversionError)


def test_torch_runs_the_expected_passes_before_translation() -> None:
    from torch.onnx._internal.exporter import _core

    source = inspect.getsource(_core._prepare_exported_program_for_export)
    passes = ["decompose_with_registry", "insert_type_promotion_nodes", "remove_assertion_nodes"]
    assert [
        line.strip().split("_fx_passes.")[1].split("(")[0] for line in source.splitlines() if "_fx_passes." in line
    ] == passes
    assert "backed_size_oblivious=True" in source


def test_the_same_operators_are_translated_in_every_opset() -> None:
    translations._registry.cache_clear()  # other tests may have registered operators after the first registry was created
    names = {opset: {str(target) for target in translations._registry(opset).functions} for opset in OPSETS}
    assert all(names[opset] == names[OPSETS[0]] for opset in OPSETS) and names[OPSETS[0]]


def test_decomposing_and_translating_load_one_registry() -> None:
    translations._registry.cache_clear()
    decomposition_table.cache_clear()
    exported = export(nn.ReLU(), (torch.zeros(2),)).run_decompositions(decomposition_table())
    (call,) = (node for node in exported.graph.nodes if node.op == "call_function")
    assert has_translation(call)
    translate(exported, OPSETS[-1])
    assert translations._registry.cache_info().misses == 1


def test_operators_that_have_a_translation_are_not_decomposed() -> None:
    table = decomposition_table()
    aten = torch.ops.aten
    for operator_with_translation in (
        aten.linear.default,
        aten.layer_norm.default,
        aten.scaled_dot_product_attention.default,
        aten.gelu.default,
    ):
        assert operator_with_translation not in table
    assert aten.huber_loss.default in table
    assert decomposition_table() is table


def test_has_translation_returns_whether_the_exporter_can_translate_a_call() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(2)
    assert has_translation(graph.call_function(torch.ops.aten.relu.default, (x,)))
    assert has_translation(graph.call_function(operator.getitem, (x, 0)))
    assert has_translation(graph.call_function(torch.ops.aten._assert_async.msg, (x, "no")))
    assert not has_translation(graph.call_function(torch.ops.aten._cdist_forward.default, (x, x, 2.0, None)))
    # trtbuild treats operators of torch.onnx.ops like operators from outside PyTorch: they stay in a Torch partition
    rotary = torch.ops.onnx.RotaryEmbedding.opset23
    assert not has_translation(graph.call_function(rotary, (x, x, x)))


class Checked(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 1)
        return x * i


def test_type_promotion_becomes_explicit_and_assertions_are_removed() -> None:
    exported = export(
        Checked(), (torch.ones(3), torch.ones(3, dtype=torch.int64)), dynamic_shapes=({0: Dim("b", min=2, max=9)},) * 2
    )
    program, _ = functional(exported.run_decompositions({}))
    module = program.exported.graph_module
    promote_types(module)
    remove_assertions(module)
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert torch.ops.prims.convert_element_type.default in targets
    assert targets[-1] is torch.ops.aten.mul.Tensor
    assert not any("assert" in str(target) for target in targets)


def test_an_untranslated_node_is_in_the_error() -> None:
    class Distance(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._cdist_forward.default(x, x, 2.0, None)

    program, _ = functional(export(Distance(), (torch.ones(2, 3),)).run_decompositions({}))
    (call,) = (node for node in program.graph.nodes if node.op == "call_function")
    with pytest.raises(TranslationFailed, match="No ONNX function found") as raised:
        translate(program.exported, 20)
    assert raised.value.node == call.name


def test_silence_exporter_hides_output_inside_its_block_only_and_does_not_hide_errors(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError), silence_exporter():
        print("never seen")
        warnings.warn("never seen", stacklevel=1)
        logging.getLogger("onnxscript").warning("never seen")
        raise KeyError
    assert capsys.readouterr().out == ""
    assert not caplog.records
    logging.getLogger("onnxscript").warning("seen")
    assert caplog.records


def test_the_import_does_not_load_onnxscript() -> None:
    code = "import sys, trtbuild.stages.program.translations; print('onnxscript' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
