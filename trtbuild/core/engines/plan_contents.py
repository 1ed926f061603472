"""The contents of a plan, as far as the plan itself names them: the types of its weights, and its kernels.

An engine may compute in other types than its ONNX model. TensorRT may convert quantized weights back to floats when it
builds, or quantized values when the engine runs. `trtbuild.toolchain.compiling.plan_reading` reads plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trtbuild.core.model.quantized_types import QUANTIZED_TYPES

#: Kinds of kernels that compute matrix products or convolutions.
_PRODUCTS = ("fully_connected", "corrltn", "deconvolution")
#: Kinds of kernels that compute no products. A fusion is listed a second time, as the kernels that it consists of.
_NO_PRODUCTS = ("runtime_fusion", "cast", "mul", "add", "copy")
#: A kernel of the kind ``function`` may compute a product if its name contains one of these texts.
_PRODUCT_NAMES = ("Fc", "Conv", "Corr", "Mm", "Gemm")


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine. `layers` are the names of the network's layers that this kernel computes.

    `reads` and `writes` are the types of its operands and results, except those that are sizes or single numbers."""

    kind: str
    name: str
    layers: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class PlanContents:
    """`weights` maps a type to the size in bytes of all weights that the plan stores in this type. Types have torch's
    names, and quantized types those of `QUANTIZED_TYPES`. A type that trtbuild does not know has the plan's name for it."""

    weights: Mapping[str, int]
    kernels: tuple[Kernel, ...]

    @property
    def stores_quantized_weights(self) -> bool:
        return not self.weights.keys().isdisjoint(QUANTIZED_TYPES)

    @property
    def multiplies_quantized_numbers(self) -> bool | None:
        """Whether a product has an operand of a quantized type; None if the plan does not show it."""
        products = [kernel for kernel in self.kernels if kernel.kind in _PRODUCTS]
        if any(not set(QUANTIZED_TYPES).isdisjoint(kernel.reads) for kernel in products):
            return True
        return None if not products or any(map(_may_multiply_unknown_types, self.kernels)) else False


def _may_multiply_unknown_types(kernel: Kernel) -> bool:
    """Whether a kernel computes a product of unknown types, or may compute a product that its kind does not show."""
    if kernel.kind in _PRODUCTS:
        return not kernel.reads
    if kernel.kind == "function":
        return any(part in kernel.name for part in _PRODUCT_NAMES)
    return kernel.kind not in _NO_PRODUCTS


def types_of_layers(kernels: Iterable[Kernel]) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Map the name of each layer to the types that its kernels read, and to the types that these kernels write.

    A kernel that computes several layers counts for each of them."""
    read_types: dict[str, dict[str, None]] = {}
    written_types: dict[str, dict[str, None]] = {}
    for kernel in kernels:
        for layer in kernel.layers:
            read_types.setdefault(layer, {}).update(dict.fromkeys(kernel.reads))
            written_types.setdefault(layer, {}).update(dict.fromkeys(kernel.writes))
    return {layer: (tuple(sorted(reads)), tuple(sorted(written_types[layer]))) for layer, reads in read_types.items()}
