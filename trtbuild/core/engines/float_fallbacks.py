"""Find engines that compute a quantized model in floats.

TensorRT may convert quantized weights back to floats while it builds, and may multiply floats although the model quantizes
both factors. Such a *fallback* gives right results, but the engine is neither smaller nor faster than an engine of the
float model.

Rules
1. A fallback is reported only if the plan proves it: the plan must name the types of its weights or kernels
   (`PlanContents`). The size of a plan proves nothing, because a plan also contains text from which kernels are compiled.
   For one 256 x 256 product, TensorRT-RTX wrote a plan of 268 kB with float32 weights, and a plan of 334 kB with two int8
   factors. The larger plan has 260 kB of text.
2. A fallback is reported only if it holds for the whole engine: no weight is stored in a quantized type, or no product
   reads a quantized number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtbuild.core.engines.plan_contents import PlanContents

#: How an engine of a quantized model uses floats: it stores weights in floats, or multiplies floats.
Fallback = Literal["weights", "products"]
FALLBACKS: tuple[Fallback, ...] = ("weights", "products")


@dataclass(frozen=True)
class QuantizedParts:
    """The quantized parts of an ONNX model, as counts.

    `weights` counts its quantized weights with two or more axes. `products` counts the matrix products and convolutions
    whose two factors are quantized."""

    weights: int
    products: int

    def __bool__(self) -> bool:
        return bool(self.weights or self.products)


def float_fallbacks(parts: QuantizedParts, contents: PlanContents | None) -> list[Fallback]:
    """Return the fallbacks of an engine. `parts` are those of its ONNX model.

    `contents` are the contents of its plan, or None if the plan names no kernels."""
    if contents is None:
        return []
    found: list[Fallback] = []
    if parts.weights and contents.weights and not contents.stores_quantized_weights:
        found.append("weights")
    if parts.products and contents.multiplies_quantized_numbers is False:
        found.append("products")
    return found
