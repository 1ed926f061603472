"""Finding the quantized engines that compute in floats."""

from __future__ import annotations

import pytest

from trtbuild.core.engines.float_fallbacks import QuantizedParts, float_fallbacks
from trtbuild.core.engines.plan_contents import Kernel, PlanContents


def contents(stored: str, multiplied: str, kind: str = "fully_connected") -> PlanContents:
    """Return the contents of a plan that stores weights as `stored`, and multiplies numbers of the type `multiplied`."""
    return PlanContents(
        {stored: 64, "float32": 8}, (Kernel(kind, "n0", ("n0",), (multiplied, "float32"), ("float32",)),)
    )


@pytest.mark.parametrize(
    ("parts", "plan", "expected"),
    [
        (QuantizedParts(weights=1, products=1), contents("int8", "int8"), []),
        (QuantizedParts(weights=1, products=1), contents("int8", "float16"), ["products"]),
        (QuantizedParts(weights=1, products=1), contents("float16", "float16"), ["weights", "products"]),
        (QuantizedParts(weights=1, products=0), contents("int4", "float16"), []),
        (QuantizedParts(weights=1, products=0), contents("float8e4m3fn", "float16"), []),
        (QuantizedParts(weights=0, products=0), contents("float16", "float16"), []),
        # an unknown kind of kernel may multiply quantized numbers
        (QuantizedParts(weights=0, products=1), contents("float16", "float16", "fmha"), []),
        (QuantizedParts(weights=1, products=1), None, []),
        (QuantizedParts(weights=1, products=1), PlanContents({}, ()), []),
    ],
)
def test_a_fallback_is_reported_only_if_it_is_certain(
    parts: QuantizedParts, plan: PlanContents | None, expected: list[str]
) -> None:
    assert float_fallbacks(parts, plan) == expected
