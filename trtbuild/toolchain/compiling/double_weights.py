"""Cast float64 weights to float32 before TensorRT reads them, for models that are built with ``truncate_double``.

A weight keeps its stored dtype, and the lower step casts it in the graph. TensorRT has no float64: its parser makes
float32 of such a weight without an error, and limits values that float32 cannot hold. Here they become infinite, as in
PyTorch. Without ``truncate_double`` no engine has a float64 weight, because the parser's check of types refuses it
(`trtbuild.toolchain.compiling.foreign_types`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT32, FLOAT64, Bytes
from trtbuild.toolchain.tensorrt8.half_weights import Narrowing, cast_weights

_DOUBLES = Narrowing(FLOAT64, np.float64, FLOAT32, np.float32)


def narrow_doubles(model: bytes, weights: Mapping[str, Bytes]) -> tuple[bytes, dict[str, Bytes]]:
    """Replace each float64 weight that a Cast makes float32 by a float32 weight. Raises ValueError if `model` is not
    ONNX."""
    return cast_weights(model, weights, _DOUBLES)
