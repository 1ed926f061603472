"""The contents of a plan (a serialized engine), as far as the plan names them: the types of its weights, and its kernels.

The contents show whether an engine computes in other types than its ONNX model.
`trtbuild.toolchain.compiling.plan_reading` reads plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trtbuild.core.model.quantized_types import QUANTIZED_TYPES

#: Kinds of kernels that compute matrix products or convolutions, by their names in plans.
_PRODUCTS = ("fully_connected", "corrltn", "deconvolution")
#: Kinds of kernels that compute no products. A fusion is in this list, because the plan also lists the kernels in it.
_NO_PRODUCTS = ("runtime_fusion", "cast", "mul", "add", "copy")
#: A kernel of the kind ``function`` may compute a product if its name contains one of these texts.
_PRODUCT_NAMES = ("Fc", "Conv", "Corr", "Mm", "Gemm")


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine. `layers` are the names of the network's layers that this kernel computes.

    `reads` are the types of its operands, and `writes` the types of its results. Sizes and single numbers do not count."""

    kind: str
    name: str
    layers: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class PlanContents:
    """The weights and kernels that a plan names.

    `weights` maps a type to the size in bytes of all weights that the plan stores in this type. Quantized types have their
    names in `QUANTIZED_TYPES`, and other types torch's names. A type that trtbuild does not know keeps its name in the
    plan."""

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
    """Whether a kernel computes a product of unknown types, or is of a kind that may compute a product."""
    if kernel.kind in _PRODUCTS:
        return not kernel.reads
    if kernel.kind == "function":
        return any(part in kernel.name for part in _PRODUCT_NAMES)
    return kernel.kind not in _NO_PRODUCTS


def types_of_layers(kernels: Iterable[Kernel]) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Map each layer to the types that its kernels read, and to the types that its kernels write.

    A kernel that computes several layers counts for each of them."""
    read_types: dict[str, dict[str, None]] = {}
    written_types: dict[str, dict[str, None]] = {}
    for kernel in kernels:
        for layer in kernel.layers:
            read_types.setdefault(layer, {}).update(dict.fromkeys(kernel.reads))
            written_types.setdefault(layer, {}).update(dict.fromkeys(kernel.writes))
    return {layer: (tuple(sorted(reads)), tuple(sorted(written_types[layer]))) for layer, reads in read_types.items()}
