"""Rewrite a converted model into a form that the library computes better.

The results are equal up to the rounding of half precision, and of float32 for
float64 weights that the model casts. Engines and the files for trtexec are both built from the
rewritten model. The version of these rules is in the key of an engine. For releases without strong typing, it is
`trtbuild.core.recipes.keys.LAYER_TYPES_VERSION`. For other releases, it is the version of the engine step.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes
from trtbuild.toolchain.tensorrt8.half_norms import typed_norms
from trtbuild.toolchain.tensorrt8.half_weights import cast_weights


def prepared(model: bytes, weights: Mapping[str, Bytes], release: Release) -> tuple[bytes, dict[str, Bytes]]:
    """Return the rewritten `model`, and the data of its external weights by name, for `release`. Raises ValueError if
    `model` is not ONNX."""
    model, weights = narrow_doubles(model, weights)
    if not release.strongly_typed:
        return cast_weights(model, weights)
    return typed_norms(model, weights, scales_halves=release.scales_halves)
