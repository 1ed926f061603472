"""Rewrite a converted model into a form that the library computes faster or more exactly.

The results of the rewritten model differ by rounding only: in half precision, and in float32 for float64 weights that the
model casts. Engines and the files for trtexec are both built from the rewritten model. The key of an engine contains a
version of the rewriting. For releases without strong typing, this is `trtbuild.core.recipes.keys.LAYER_TYPES_VERSION`. For
other releases, it is the version of the engine step.
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
    return rewrite_norms(model, weights, scales_halves=release.scales_halves)
