"""Rewrite a converted model into a form that the library computes better.

The results are equal up to the rounding of half precision, and of float32 for float64 weights that the model casts. Engines
and the files for trtexec are both made from it. The rules are in the key of an engine: before strong typing by
`trtbuild.core.recipes.keys.LAYER_TYPES_VERSION`, from then on by the version of the engine step.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes
from trtbuild.toolchain.tensorrt8.half_norms import typed_norms
from trtbuild.toolchain.tensorrt8.half_weights import cast_weights


def prepared(model: bytes, weights: Mapping[str, Bytes], release: Release) -> tuple[bytes, dict[str, Bytes]]:
    """Return `model`, and the data of its external weights by name, for `release`. Raises ValueError if `model` is not
    ONNX."""
    model, weights = narrow_doubles(model, weights)
    if not release.strongly_typed:
        return cast_weights(model, weights)
    return typed_norms(model, weights, scales_halves=release.scales_halves)
