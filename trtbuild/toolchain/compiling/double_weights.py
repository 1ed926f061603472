"""Cast float64 weights to float32 before TensorRT reads them, for models that are built with ``truncate_double``.

A weight keeps its stored dtype, and the lower step adds a cast to the graph. TensorRT does not have float64. Its parser
changes such a weight to float32 without an error, and replaces values that are too large by the largest float32. The cast
in this module makes them infinite, as PyTorch does. Without ``truncate_double`` no engine has a float64 weight, because
`trtbuild.toolchain.compiling.foreign_types` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT32, FLOAT64, Bytes
from trtbuild.toolchain.tensorrt8.half_weights import Narrowing, cast_weights

_DOUBLE_TO_FLOAT = Narrowing(FLOAT64, np.float64, FLOAT32, np.float32)


def narrow_doubles(model: bytes, weights: Mapping[str, Bytes]) -> tuple[bytes, dict[str, Bytes]]:
    """Replace Cast nodes that convert a float64 weight to float32 by the float32 weight (half_weights.py, rules 1 to 3).
    Raises ValueError if `model` is not ONNX."""
    return cast_weights(model, weights, _DOUBLE_TO_FLOAT)
