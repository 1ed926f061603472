"""From the opset that a model was translated in to the toolchain's.

Up: onnxscript's converter, which works on the model in memory. Down: onnx's own, operator by operator; it knows most of
17 and 18, and refuses what has no older form.
"""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir
from onnxscript import version_converter

from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.canonical import ORIGIN


def raise_opset(model: onnx_ir.Model, opset: int) -> None:
    """Convert `model` to `opset` in place where that is newer than its own."""
    if model.opset_imports[""] < opset:
        version_converter.convert_version(model, opset, fallback=False)
        model.opset_imports[""] = opset


def lower_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """`model` in an older `opset`; origins are kept. Raises ConversionRefused where an operator has no older form."""
    (own,) = (entry.version for entry in model.opset_import if not entry.domain)
    if own <= opset:
        return model
    # The C++ converter keeps the nodes' names and drops their metadata.
    origins = {
        node.name: entry.value for node in model.graph.node for entry in node.metadata_props if entry.key == ORIGIN
    }
    try:
        lowered = onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # it raises RuntimeError and ConvertError, which is not exported
        reason = str(error).strip().splitlines()
        raise ConversionRefused(
            f"no form in ONNX opset {opset}: {reason[-1] if reason else type(error).__name__}",
            hint="a newer toolchain takes newer opsets",
        ) from error
    for node in lowered.graph.node:
        if node.name in origins:
            node.metadata_props.add(key=ORIGIN, value=origins[node.name])
    return lowered
