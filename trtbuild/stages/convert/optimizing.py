"""Fold constants and simplify an ONNX model by onnxscript's optimizer, with an exact comparison of constants.

The optimizer's rules compare constants with a tolerance (in onnxscript 0.7.2 a relative one of 1e-5, and an absolute one
of 1e-8). So they replace ``x + 1e-9`` and ``x * 1.000001`` by ``x``, and a term that prevents a division by 0 is lost.
Here constants are compared exactly.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import onnx_ir
from onnxscript import optimizer
from onnxscript.rewriter import _ir_utils, _matcher

#: The modules of onnxscript that compare constants by ``math.isclose``.
_COMPARING_MODULES = (_matcher, _ir_utils)


def optimize(model: onnx_ir.Model) -> None:
    """Optimize `model` in place."""
    with _compare_exactly():
        optimizer.optimize_ir(model)


@contextlib.contextmanager
def _compare_exactly() -> Iterator[None]:
    originals = [module.math for module in _COMPARING_MODULES]
    for module in _COMPARING_MODULES:
        module.math = types.SimpleNamespace(isclose=lambda a, b, **_: a == b)
    try:
        yield
    finally:
        for module, original in zip(_COMPARING_MODULES, originals, strict=True):
            module.math = original
