"""Rewrite a converted model into a form that TensorRT computes faster or more exactly.

The results differ from those of the converted model only by rounding: in half precision, and in models that cast float64
weights to float32. Engines and the files for trtexec are made from the rewritten model.

If you change the rewriting, change a number in the keys of engines, too. This number is the version of the engine step, or
`trtbuild.core.recipes.keys.LAYER_TYPES_VERSION` for releases without strong typing.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes
from trtbuild.toolchain.tensorrt8.half_norms import rewrite_norms
from trtbuild.toolchain.tensorrt8.half_weights import cast_weights


def prepare_model(model: bytes, weights: Mapping[str, Bytes], release: Release) -> tuple[bytes, dict[str, Bytes]]:
    """Return the rewritten `model` for `release`, and its external weights: name → data. Raises ValueError if `model` is
    not ONNX."""
    model, weights = narrow_doubles(model, weights)
    if not release.strongly_typed:
        return cast_weights(model, weights)
    return rewrite_norms(model, weights, converts_half_norm_to_scale_layer=release.converts_half_norm_to_scale_layer)
