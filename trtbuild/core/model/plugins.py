"""The field ``plugins:`` of a model: operators from outside PyTorch that become TensorRT plugins inside engines.

A manifest maps each operator to a plugin. This mapping decides how a model is divided and converted. Only the engine
steps, the package step and the process that runs the engines use the library with the plugins' code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.values.encoding import Value

#: The domain of the nodes that stand for plugins in ONNX models. TensorRT's parser finds a plugin by the node's operator,
#: in any domain.
ONNX_DOMAIN = "trt.plugins"

#: Attributes of an ONNX node for TensorRT's parser, not for the plugin (onnx-tensorrt, ``FallbackPluginImporter``).
VERSION_ATTRIBUTE, NAMESPACE_ATTRIBUTE = "plugin_version", "plugin_namespace"

#: The namespaces of PyTorch's own operators.
TORCH_NAMESPACES = frozenset(("aten", "prim", "prims", "quantized", "quantized_decomposed", "torch", "higher_order"))


@dataclass(frozen=True)
class Plugin:
    """The plugin for the operator `operator` (``mylib::roi``).

    `name`, `version` and `namespace` are those of the plugin in TensorRT's registry.

    Each argument that is not a tensor becomes the plugin's field of the same name. `arguments` maps an argument to another
    field name, or to None if the plugin has no field for the argument. `attributes` maps other fields of the plugin to
    fixed values.
    """

    operator: str
    name: str
    version: str = "1"
    namespace: str = ""
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plugin:
        return cls(**data)


@dataclass(frozen=True)
class Plugins:
    """The fields of ``plugins:``. `library` is a path relative to the project, or None for plugins of TensorRT itself."""

    operators: tuple[Plugin, ...]
    library: str | None = None


def plugin_text(name: str, version: str, namespace: str) -> str:
    """The text that messages show for a plugin: ``RoiPlugin, version 1``."""
    return f"{name}, version {version}" + (f", namespace {namespace}" if namespace else "")


def operator_name(namespace: str, operator: str, overload: str) -> str:
    """The name of an operator in a manifest: ``mylib::roi``, or ``mylib::roi.other`` for another overload."""
    return f"{namespace}::{operator}" + ("" if overload in ("", "default") else f".{overload}")


def plugins_of(plugins: Plugins | None, operators: Iterable[str]) -> tuple[Plugin, ...]:
    """The entries of `plugins` for `operators`, which are qualified names such as ``mylib::roi``."""
    names = frozenset(operators)
    return () if plugins is None else tuple(plugin for plugin in plugins.operators if plugin.operator in names)


def has_library(plugins: Plugins | None, operators: Sequence[str]) -> bool:
    """Whether the plugins for `operators` come from a library of the project."""
    return plugins is not None and plugins.library is not None and bool(operators)
