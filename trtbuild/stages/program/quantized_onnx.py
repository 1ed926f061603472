"""The ONNX translations of trtbuild's quantizers (`trtbuild.quantized_operators`).

Rules
1. ``fake_quantize`` becomes QuantizeLinear and DequantizeLinear, and ``dequantize`` becomes DequantizeLinear.
   ``fake_quantize_two_levels`` has no translation, because no quantizer of ONNX computes scales of blocks while the model
   runs. The trace replaces it where its input is a weight.
2. In the program, quantized weights are bytes, with two 4-bit elements in a byte. In the ONNX model, a weight has the type
   of its elements (`set_stored_types`). So a 4-bit element takes 4 bits in an engine.
3. The quantizers need newer opsets than other operators: 19 for int8 and float8 (21 for ``fake_quantize`` with several
   scales), 21 for int4 and blocks, 23 for float4 (onnx, docs/Operators.md, QuantizeLinear). The parser of a toolchain
   that reads opset 20 also reads these opsets (measured with TensorRT-RTX 1.7.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtbuild.quantized_operators import FLOAT4, FLOAT8, FOUR_BITS, INT4, INT8, define_operators

if TYPE_CHECKING:
    import onnx_ir

#: Parsers that read this opset also read the opsets of all quantizers (rule 3).
OPSET_OF_NEW_PARSERS = 20

_BLOCKS_OPSET = 21
_OPSETS = {INT8: 19, FLOAT8: 19, INT4: _BLOCKS_OPSET, FLOAT4: 23}
#: onnx.TensorProto.DataType.
_ONNX_TYPES = {INT8: 3, FLOAT8: 17, INT4: 22, FLOAT4: 23}
#: Type → the smallest result of QuantizeLinear. `fake_quantize` refuses another limit; other types are not checked.
_SMALLEST = {INT4: -8}


def required_opset(graph: torch.fx.Graph) -> int:
    """The first opset that has all quantizers of a graph (rule 3); 1 for a graph without quantizers."""
    return max((_opset_of(node) for node in quantizers_in(graph)), default=1)


def quantizers_in(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if getattr(node.target, "namespace", None) == "trtbuild"]


def register_translations(registry: Any) -> None:
    """Add the translations to a registry of the exporter (rule 1)."""
    import onnxscript
    from onnx.helper import make_tensor
    from onnxscript.onnx_types import TensorType

    #: Opset → its operators. A call uses the first opset that has its operator, because the version converter refuses
    #: operators that are newer than the opset to which it converts.
    operators = {19: onnxscript.opset19, _BLOCKS_OPSET: onnxscript.opset21, 23: onnxscript.opset23}

    def dequantize(values: TensorType, scale: TensorType, element: str, axis: int, block_size: int) -> TensorType:
        onnx: Any = operators[max(_OPSETS[element], _BLOCKS_OPSET if block_size else 1)]
        if block_size:
            return onnx.DequantizeLinear(values, scale, axis=axis, block_size=block_size)
        options = {"axis": axis} if len(scale.shape) else {}
        return onnx.DequantizeLinear(values, scale, **options)

    def fake_quantize(
        x: TensorType, scale: TensorType, element: str, axis: int, block_size: int, smallest: int
    ) -> TensorType:
        if smallest != _SMALLEST.get(element, smallest):
            raise ValueError(f"a quantizer of {element} from {smallest}: ONNX has no such limit")
        onnx: Any
        if not block_size and not len(scale.shape):
            onnx = operators[_OPSETS[element]]
            zero = onnx.Constant(value=make_tensor("zero", _ONNX_TYPES[element], [], b"\0", raw=True))
            return onnx.DequantizeLinear(onnx.QuantizeLinear(x, scale, zero), scale, zero)
        onnx = operators[_BLOCKS_OPSET]
        options = {"axis": axis}
        if block_size:
            if x.shape[-1] % block_size:
                raise ValueError(f"blocks of {block_size} do not divide the size {x.shape[-1]}")
            scale = onnx.Reshape(scale, [*x.shape[:-1], x.shape[-1] // block_size])
            options = {"axis": len(x.shape) - 1, "block_size": block_size}  # TensorRT refuses -1 for blocks
        numbers = onnx.QuantizeLinear(x, scale, output_dtype=_ONNX_TYPES[element], **options)
        return onnx.DequantizeLinear(numbers, scale, **options)

    define_operators()
    registry.register_op(torch.ops.trtbuild.dequantize.default, dequantize)
    registry.register_op(torch.ops.trtbuild.fake_quantize.default, fake_quantize)


def set_stored_types(model: onnx_ir.Model) -> None:
    """Give each quantized weight of a translated program its ONNX type, and a shape that counts elements instead of bytes
    (rule 2)."""
    import onnx_ir

    for node in model.graph:
        call = node.meta.get("node")
        if (
            node.op_type != "DequantizeLinear"
            or getattr(call, "target", None) is not torch.ops.trtbuild.dequantize.default
        ):
            continue
        element, values = call.args[2], node.inputs[0]
        values.dtype = onnx_ir.DataType(_ONNX_TYPES[element])
        if element in FOUR_BITS:
            sizes = list(call.args[0].meta["val"].shape)
            values.shape = onnx_ir.Shape([*sizes[:-1], 2 * sizes[-1]])


def _opset_of(node: torch.fx.Node) -> int:
    if node.target not in (torch.ops.trtbuild.dequantize.default, torch.ops.trtbuild.fake_quantize.default):
        return 1
    scale, element, _, block_size = node.args[1:5]
    has_output_type = node.target is torch.ops.trtbuild.fake_quantize.default and scale.meta["val"].dim() > 0
    return max(_OPSETS[element], _BLOCKS_OPSET if block_size or has_output_type else 1)
