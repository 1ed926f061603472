"""Cast float64 weights to float32 before TensorRT reads them, for models that are built with ``truncate_double``.

The stored weights of such a model stay float64, and the lower step adds casts to the graph. TensorRT has no float64. Its
parser would change the weights to float32, and replace values that are too large by the largest float32. The cast in this
module makes these values infinite, as PyTorch does.

Without ``truncate_double``, `trtbuild.toolchain.compiling.foreign_types` refuses float64 weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT32, FLOAT64, Bytes
from trtbuild.toolchain.tensorrt8.half_weights import Narrowing, cast_weights

_DOUBLE_TO_FLOAT = Narrowing(FLOAT64, np.float64, FLOAT32, np.float32)


def narrow_doubles(model: bytes, weights: Mapping[str, Bytes]) -> tuple[bytes, dict[str, Bytes]]:
    """Replace each Cast node from a float64 weight to float32 by a float32 weight.

    Rules 1 to 3 of `trtbuild.toolchain.tensorrt8.half_weights` apply, with these two types. Raises ValueError if `model`
    is not ONNX."""
    return cast_weights(model, weights, _DOUBLE_TO_FLOAT)
