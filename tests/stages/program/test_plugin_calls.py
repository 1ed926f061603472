"""The fields that the arguments of a custom operator become, if its calls are calls of a TensorRT plugin."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtbuild.core.model.plugins import Plugin
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import functional
from trtbuild.stages.program.plugins import check_plugins, is_plugin, plugin_call

LIBRARY = torch.library.Library("plugin_call_test", "FRAGMENT")
LIBRARY.define("scaled(Tensor x, float a, float? b=3, int height=2, int width=4) -> Tensor")
LIBRARY.define("versioned(Tensor x, str plugin_version='2') -> Tensor")
for _operator in ("scaled", "versioned"):
    torch.library.register_fake(f"plugin_call_test::{_operator}", lambda x, *_: torch.empty_like(x), lib=LIBRARY)


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = torch.ops.plugin_call_test.scaled(x, 2)
        return scaled


class Versioned(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        versioned: torch.Tensor = torch.ops.plugin_call_test.versioned(x)
        return versioned


def graph_of(module: torch.nn.Module) -> torch.fx.Graph:
    return functional(torch.export.export(module, (torch.zeros(2),), strict=False).run_decompositions({}))[0].graph


def fields(plugin: Plugin) -> dict[str, Any]:
    graph = graph_of(Scaled())
    (call,) = (node for node in graph.nodes if is_plugin(node, {plugin.operator: plugin}))
    return dict(plugin_call(call, plugin).fields)


def test_a_float_that_a_schema_writes_as_an_int_is_a_float_field() -> None:
    found = fields(Plugin("plugin_call_test::scaled", "Scaled", arguments={"height": "rows"}))
    expected = {"a": 2.0, "b": 3.0, "rows": 2, "width": 4, "plugin_version": "1", "plugin_namespace": ""}
    assert found == expected and {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in expected.items()
    }


@pytest.mark.parametrize("arguments", [{"height": "width"}, {"height": "size", "width": "size"}])
def test_rejects_two_arguments_that_set_one_field(arguments: dict[str, str | None]) -> None:
    plugin = Plugin("plugin_call_test::scaled", "Scaled", arguments=arguments)
    with pytest.raises(SourceError, match=r"'width' .* and another argument both set the field '(width|size)'"):
        check_plugins(graph_of(Scaled()), [plugin])


def test_rejects_an_argument_with_the_name_of_an_attribute_that_the_parser_reads() -> None:
    with pytest.raises(SourceError, match="TensorRT's parser both set the field 'plugin_version'"):
        check_plugins(graph_of(Versioned()), [Plugin("plugin_call_test::versioned", "Versioned")])
    plugin = Plugin("plugin_call_test::versioned", "Versioned", arguments={"plugin_version": None})
    check_plugins(graph_of(Versioned()), [plugin])
