"""Compare the results of TensorRT plugins in a network with the results that their operators declare in PyTorch.

An operator declares them by its fake implementation (``torch.library.register_fake``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.core.values.element_types import BY_ONNX
from trtbuild.errors import PluginError
from trtbuild.toolchain.onnx_files.plugin_nodes import PluginNode


def check_plugin_results(network: Any, plugins: Sequence[PluginNode]) -> None:
    """Raise PluginError if a plugin has a result of another type, rank or size than its operator declares.

    Such a result is wrong, because the operators after the plugin were converted for the declared one. A type, a
    rank or a size that is unknown on one side is not compared. A result whose name is not in the network is skipped."""
    if not plugins:
        return
    tensors = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for number in range(layer.num_outputs):
            tensor = layer.get_output(number)
            tensors[tensor.name] = tensor
    for plugin in plugins:
        for number, (name, element, declared_sizes) in enumerate(plugin.results):
            tensor = tensors.get(name)
            if tensor is None:
                continue
            actual_type = str(tensor.dtype).rpartition(".")[2]
            sizes = _sizes(tensor)
            declared_type = BY_ONNX[element].tensorrt if element in BY_ONNX else actual_type
            sizes_agree = sizes is None or (
                len(sizes) == len(declared_sizes)
                and all(
                    size == -1 or other is None or size == other
                    for size, other in zip(sizes, declared_sizes, strict=True)
                )
            )
            if actual_type != declared_type or not sizes_agree:
                raise PluginError(
                    f"result {number} of the plugin {plugin.text} is {_text(actual_type, sizes)} in the network, but "
                    f"the fake implementation of its operator declares {_text(str(declared_type), declared_sizes)}",
                    hint="correct the plugin, or the function that torch.library.register_fake registers",
                )


def _sizes(tensor: Any) -> tuple[int, ...] | None:
    try:
        return tuple(tensor.shape)
    except ValueError:  # the rank is not known before the build
        return None


def _text(kind: str, sizes: Sequence[int | None] | None) -> str:
    if sizes is None:
        return kind
    return f"{kind.lower()}[{', '.join('?' if size in (None, -1) else str(size) for size in sizes)}]"
