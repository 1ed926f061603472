"""Refuse quantized types that a GPU does not have, before TensorRT compiles the model.

TensorRT refuses such types only after some seconds, and its error does not name the types that the GPU has.
"""

from __future__ import annotations

from trtbuild.core.model.quantized_types import types_of, unsupported_reason
from trtbuild.core.model.spec import Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.onnx_files.onnx_outline import Outline

#: onnx.TensorProto.DataType → the type's name. All GPUs have int8.
_NAMES = {17: "float8e4m3fn", 19: "float8e5m2", 22: "int4", 23: "float4e2m1"}


def check_quantized_types(model: Outline, target: Target, version: str | None = None) -> None:
    """Raise ToolchainError if `model` has a quantized type that the target's GPU, or `version` of its toolchain, lacks.

    Without a version, the newest release counts."""
    # An engine with compatibility ampere_plus must also run on the oldest of these GPUs.
    sm = table.AMPERE_SM if target.compatibility == "ampere_plus" else target.sm
    types = {element for _, element in model.initializers} | {
        element for node in model.nodes for element in node.attribute_types
    }
    for element in sorted(types & _NAMES.keys()):
        reason = unsupported_reason(_NAMES[element], target.toolchain, version, sm)
        if reason is not None:
            others = " or ".join(types_of(target.toolchain, version, sm))
            raise ToolchainError(
                f"the model is quantized to {_NAMES[element]}, which {reason}",
                hint=f"build it for other targets, or quantize it to a type that this target has: {others}",
            )
