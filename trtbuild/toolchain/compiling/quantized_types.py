"""Refuse quantized types that a GPU does not have, before TensorRT compiles the model.

TensorRT refuses them, too, but only after seconds, and without a word about another type.

| type | first SM | source |
|---|---|---|
| int8, int4 | all | TensorRT-RTX 1.7.1 builds them for SM 80 to 120 (measured) |
| float8e4m3fn, float8e5m2 | 89 | TensorRT-RTX 1.7.1 builds them for SM 89 and 120, and refuses SM 80 and 86 (measured) |
| float4e2m1 | 100 | TensorRT-RTX 1.7.1 builds it for SM 120, and refuses SM 89 (measured). Blackwell begins with SM 100 |
"""

from __future__ import annotations

from trtbuild.core.model.spec import Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.onnx_files.onnx_outline import Outline

#: onnx.TensorProto.DataType → the type's name, and the first SM that has it.
_FIRST_SMS = {17: ("float8e4m3fn", 89), 19: ("float8e5m2", 89), 23: ("float4e2m1", 100)}


def refuse_types(model: Outline, target: Target) -> None:
    """Raise ToolchainError if a quantizer of `model` has a type that the GPU of `target` does not have."""
    sm = table.AMPERE_SM if target.compatibility == "ampere_plus" else target.sm
    types = {element for _, element in model.initializers} | {element for node in model.nodes for element in node.types}
    for element in sorted(types & _FIRST_SMS.keys()):
        name, first_sm = _FIRST_SMS[element]
        if sm < first_sm:
            raise ToolchainError(
                f"the model is quantized to {name}, which begins with SM {first_sm}, but the target is for SM {sm}",
                hint=f"build it for targets from SM {first_sm} on, or quantize it to int8, which all GPUs have",
            )
