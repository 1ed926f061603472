"""Rewrite a converted model into a form that TensorRT computes faster or more exactly.

The results of the rewritten model differ from those of the converted model only by rounding. This happens in half
precision, and in models that cast float64 weights to float32. Engines and the files for trtexec are built from the
rewritten model.

If the rewriting changes, a number in the keys of engines must change: `trtbuild.core.recipes.keys.LAYER_TYPES_VERSION` for
releases without strong typing, the version of the engine step for other releases.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes
from trtbuild.toolchain.tensorrt8.half_norms import rewrite_norms
from trtbuild.toolchain.tensorrt8.half_weights import cast_weights


def prepare_model(model: bytes, weights: Mapping[str, Bytes], release: Release) -> tuple[bytes, dict[str, Bytes]]:
    """Return the rewritten `model`, and the data of its external weights by name, for `release`. Raises ValueError if
    `model` is not ONNX."""
    model, weights = narrow_doubles(model, weights)
    if not release.strongly_typed:
        return cast_weights(model, weights)
    return rewrite_norms(model, weights, half_norm_is_scale_layer=release.half_norm_is_scale_layer)
