"""Store quantized weights as numbers of the narrow type, such as int8, instead of floats.

A model has weights as floats, and quantizers that read them. The trace computes the numbers to which such a quantizer
rounds a weight, and stores them as a weight of the program. A dequantizer replaces a quantizer that returns floats (int4,
float8, float4). An int8 quantizer returns numbers of its type: it is removed, and the dequantizer after it stays. So an
engine contains 4 or 8 bits for each number. (TensorRT-RTX 1.7.1 does this itself for QuantizeLinear of int4 and float8
weights, but not for int8.)

Rules
1. The results of the dequantizer equal those of the quantizer in every bit: both call the same functions.
2. An int8 weight is stored if the other operand of its product is not quantized. If both are quantized, TensorRT chooses
   the arithmetic from the two quantizers, so both stay.
3. Blocks have to divide the last axis of a matrix, and this axis must have an even size, because two 4-bit numbers share a
   byte. Other weights in blocks are rounded, but stay floats, because neither ONNX's blocks nor TensorRT's kernels fit
   them. An empty weight stays a float, too.
4. Weights with two levels of scales (NVFP4) are stored as float4 numbers, float8 scales of blocks and one float32 scale.
   Their quantizer computes its scales from its input. An input that is not a known weight is an error, because ONNX has no
   such quantizer, and no reference on a CPU could compute its results.
5. With ``weights:``, weights are read after the trace, so the trace does not call `store_weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode

from trtbuild.core.model.quantized_types import ROUNDED
from trtbuild.quantized_operators import FLOAT4, FLOAT8, block_scales, quantize
from trtbuild.stages.program.quantized import register_operators
from trtbuild.stages.trace.quantization.weight_limits import COPIES

_aten = torch.ops.aten
#: Operators that move the numbers of their input to other places, and do not change them.
_MOVES = (_aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.view.default, _aten.reshape.default)

#: The placeholder of a weight or a constant → its value.
Values = Mapping[torch.fx.Node, torch.Tensor]


@dataclass(frozen=True)
class StoredWeight:
    """A new weight of a program. `node` is its placeholder."""

    node: torch.fx.Node
    name: str
    value: torch.Tensor


def store_weights(
    graph: torch.fx.Graph,
    values: Values,
    names: Mapping[torch.fx.Node, str],
    two_levels_error: Callable[[str], Exception],
) -> list[StoredWeight]:
    """Replace quantizers of weights in place, and return the new weights. `values` are the values of weights and constants,
    and `names` their names.

    `two_levels_error` makes the error that is raised for a quantizer with two levels of scales whose input is not a known
    weight (rule 4). Its argument is the path of the quantizer's module."""
    register_operators()
    replacer = _QuantizerReplacer(graph, values, names)
    int8_quantizers = _int8_quantizers()
    operators = torch.ops.trtbuild
    quantizers = (*int8_quantizers, operators.fake_quantize.default, operators.fake_quantize_two_levels.default)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in quantizers or replacer.reuse(node):
            continue
        if node.target is operators.fake_quantize.default:
            replacer.store_single_level(node)
        elif node.target is operators.fake_quantize_two_levels.default:
            if replacer.weight_of(node) is None:
                raise two_levels_error(_module_of(node))
            replacer.store_two_levels(node)
        elif node.target in int8_quantizers and _is_weight_only(node):
            replacer.store_int8(node)
    return replacer.stored


class _QuantizerReplacer:
    def __init__(self, graph: torch.fx.Graph, values: Values, names: Mapping[torch.fx.Node, str]) -> None:
        self._graph, self._values, self._names = graph, values, names
        #: The `_key` of a quantizer → its replacement. A module that is called twice has two equal quantizers in the graph.
        self._results: dict[Any, torch.fx.Node] = {}
        self.stored: list[StoredWeight] = []

    def weight_of(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The weight that a quantizer reads, as float32. None if it reads another value, or a weight without floats."""
        value = self._values.get(_placeholder_of(node))
        if value is None or not value.is_floating_point():
            return None
        return _cast_like(node.args[0], value.detach()).float()

    def store_single_level(self, node: torch.fx.Node) -> None:
        """Store the weight of a ``fake_quantize``, with one scale, or with scales of channels or blocks (rule 3). Do
        nothing if the weight is empty, or if the weight or its scales are not known."""
        weight, (scale, element, axis, block_size, lower_limit) = self.weight_of(node), node.args[1:]
        scales = self._values.get(scale)
        if weight is None or not weight.numel() or scales is None:
            return
        if block_size:
            scales = scales.reshape([*weight.shape[:-1], -1])
            if not _has_whole_blocks(weight, block_size):
                self._replace(node, self._add_weight(node, ROUNDED, node.target(weight, scales, *node.args[2:])))
                return
            scale = self._add_weight(node, "scales", scales)
            axis = weight.dim() - 1
        stored = self._add_weight(node, element, quantize(weight, scales, element, axis, block_size, lower_limit))
        self._replace(node, self._add_dequantizer(node, stored, scale, element, axis, block_size))

    def store_two_levels(self, node: torch.fx.Node) -> None:
        """Store the weight of a ``fake_quantize_two_levels`` (rules 3 and 4). Do nothing if the weight or its scale is not
        known."""
        weight, (scale, block_size) = self.weight_of(node), node.args[1:]
        tensor_scale = self._values.get(scale)
        if weight is None or tensor_scale is None:
            return
        if not _has_whole_blocks(weight, block_size):
            self._replace(node, self._add_weight(node, ROUNDED, node.target(weight, tensor_scale, block_size)))
            return
        scales_of_blocks = block_scales(weight, tensor_scale, block_size)
        first_level = self._add_dequantizer(
            node, self._add_weight(node, "scales", scales_of_blocks), scale, FLOAT8, 0, 0
        )
        multipliers = torch.ops.trtbuild.dequantize(scales_of_blocks, tensor_scale, FLOAT8, 0, 0)
        stored = self._add_weight(node, FLOAT4, quantize(weight, multipliers, FLOAT4, 1, block_size, 0))
        self._replace(node, self._add_dequantizer(node, stored, first_level, FLOAT4, 1, block_size))

    def store_int8(self, node: torch.fx.Node) -> None:
        """Store the weight of an int8 quantizer (rule 2). Do nothing if the weight is empty, or if the weight or an
        argument is not known."""
        weight = self.weight_of(node)
        arguments = [self._value(argument) for argument in node.args[1:]]
        if weight is None or not weight.numel() or any(isinstance(argument, torch.fx.Node) for argument in arguments):
            return
        self._replace(node, self._add_weight(node, "int8", node.target(weight, *arguments)))

    def _value(self, argument: Any) -> Any:
        """The value of an argument; a node whose value is not known stays a node."""
        if not isinstance(argument, torch.fx.Node):
            return argument
        if argument.target is _aten.full.default:  # zero points
            return torch.full(argument.args[0], argument.args[1], dtype=argument.meta["val"].dtype)
        return self._values.get(argument, argument)

    def _add_weight(self, node: torch.fx.Node, suffix: str, value: torch.Tensor) -> torch.fx.Node:
        """Add a placeholder for a new weight. Its name is ``NAME:suffix``, where NAME is the name of the weight that the
        quantizer `node` reads."""
        name = f"{self._names[_placeholder_of(node)]}:{suffix}"
        used = {weight.name for weight in self.stored}
        name = next(text for text in (name, *(f"{name}{number}" for number in range(2, 1 << 16))) if text not in used)
        mode = detect_fake_mode(node.meta["val"])
        with self._graph.inserting_before(next(iter(self._graph.nodes))):
            placeholder = self._graph.placeholder(f"stored_{len(self.stored)}")
        value = value.detach().contiguous()
        placeholder.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
        self.stored.append(StoredWeight(placeholder, name, value))
        return placeholder

    def _add_dequantizer(self, node: torch.fx.Node, *arguments: Any) -> torch.fx.Node:
        """Add a call of ``dequantize`` before `node`."""
        target = torch.ops.trtbuild.dequantize.default
        with self._graph.inserting_before(node):
            call = self._graph.call_function(target, arguments)
        call.meta = {key: item for key, item in node.meta.items() if key in ("nn_module_stack", "stack_trace")}
        operands = [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in arguments]
        call.meta["val"] = target(*operands)
        return call

    def _replace(self, node: torch.fx.Node, result: torch.fx.Node) -> None:
        """Replace the quantizer `node` by `result`. Remove casts and checks of the float weight that are unused then."""
        self._results[self._key(node)] = result
        node.replace_all_uses_with(result)
        source: Any = node.args[0]
        self._graph.erase_node(node)
        while True:  # checks and copies of the float weight would keep it in the program
            if all(user.target is _aten._assert_tensor_metadata.default for user in source.users):
                for user in list(source.users):
                    self._graph.erase_node(user)
            if source.target not in COPIES or source.users:
                return
            unused, source = source, source.all_input_nodes[0]
            self._graph.erase_node(unused)

    def reuse(self, node: torch.fx.Node) -> bool:
        """Replace a quantizer by the replacement of an equal one. Returns False if there is no such replacement."""
        result = self._results.get(self._key(node))
        if result is not None:
            self._replace(node, result)
        return result is not None

    def _key(self, node: torch.fx.Node) -> Any:
        """The key of a quantizer in `_results`. Equal quantizers may each have an ``aten.full`` for their zero points, so
        the key contains the arguments of this call instead of its node."""
        arguments = (
            str(item.args) if isinstance(item, torch.fx.Node) and item.args else item for item in node.args[1:]
        )
        return (node.target, _placeholder_of(node), _casts_to(node.args[0]), *arguments)


def _placeholder_of(node: torch.fx.Node) -> Any:
    """The node whose value a quantizer reads, without the casts and copies between them."""
    source = node.args[0]
    while isinstance(source, torch.fx.Node) and source.target in COPIES:
        source = source.all_input_nodes[0]
    return source


def _casts_to(node: Any) -> tuple[torch.dtype, ...]:
    """The types of the values that lead to `node` by casts and copies, in order. Each cast may round the numbers. So two
    nodes with different types may have different numbers, even if both are float32 in the end."""
    before = _casts_to(node.all_input_nodes[0]) if node.target in COPIES else ()
    dtype = node.meta["val"].dtype
    return before if before[-1:] == (dtype,) else (*before, dtype)


def _cast_like(node: Any, value: torch.Tensor) -> torch.Tensor:
    """`value` after the casts that lead to `node`."""
    if node.target in COPIES:
        value = _cast_like(node.all_input_nodes[0], value)
    return value.to(node.meta["val"].dtype)


def _has_whole_blocks(weight: torch.Tensor, block_size: int) -> bool:
    """Whether a weight in blocks of 4-bit numbers can be stored in 4 bits (rule 3)."""
    return weight.dim() == 2 and weight.numel() > 0 and not weight.shape[1] % block_size and not weight.shape[1] % 2


def _int8_quantizers() -> tuple[Any, ...]:
    quantized = torch.ops.quantized_decomposed
    return (quantized.quantize_per_tensor.default, quantized.quantize_per_channel.default)


def _is_weight_only(node: torch.fx.Node) -> bool:
    """Whether the result of an int8 quantizer is used only beside values that are not quantized (rule 2)."""
    if node.args[-1] is not torch.int8:
        return False
    readers = [pair for dequantizer in node.users for pair in _readers(dequantizer)]
    return not any(
        _is_dequantized(operand)
        for reader, weight_operand in readers
        for operand in reader.all_input_nodes
        if operand is not weight_operand
    )


def _readers(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Yield the calls that compute with the value of `node`, each with its operand that has this value."""
    for user in node.users:
        if user.target in COPIES or user.target in _MOVES:
            yield from _readers(user)
        else:
            yield user, node


def _is_dequantized(node: torch.fx.Node) -> bool:
    """Whether a value comes from a dequantizer or a fake quantizer: ``quantize`` is in the names of all their operators."""
    while node.op == "call_function" and (node.target in COPIES or node.target in _MOVES):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and "quantize" in str(node.target)


def _module_of(node: torch.fx.Node) -> str:
    """The path of the module that calls a quantizer."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(paths[-1]) if paths else node.name
