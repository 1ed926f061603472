"""Quantizers in a program, and the program without them: the float model.

Rules
1. A call of ``fake_quantize`` is replaced by its input. A quantizer and its dequantizers are removed, if only
   operators of `_MOVES` are between them.
2. A dequantizer stays if no quantizer has made its numbers. If the numbers are weights, the program has no floats
   for them: PT2E and the trace store quantized weights as numbers of the quantized type.
   `Unquantized.stored` lists these types.
3. A quantizer whose numbers are used in another way stays, too (`Unquantized.left`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trtbuild.core.model.verification import QUANTIZER_TYPES, RoundedType
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name

_FAKE_QUANTIZERS = ("aten.fake_quantize_", "trtbuild.fake_quantize")
_QUANTIZERS, _DEQUANTIZERS = (
    "quantized_decomposed.quantize_",
    ("quantized_decomposed.dequantize_", "trtbuild.dequantize"),
)
#: Operators that commute with a quantizer whose zero point is 0.
_MOVES = (
    "alias", "clone", "contiguous", "detach", "expand", "flatten", "max_pool2d", "permute", "relu", "reshape", "select",
    "slice", "split", "squeeze", "t", "transpose", "unsqueeze", "view", "_unsafe_view",
)  # fmt: skip
#: A quantizer with fewer steps counts as int4.
_FEWEST_INT8_STEPS = 64


def is_quantizer(node: torch.fx.Node) -> bool:
    """Whether a node rounds its input to the numbers of a quantized type."""
    return _has_name(node, *_FAKE_QUANTIZERS, _QUANTIZERS)


def quantizer_type(node: torch.fx.Node) -> RoundedType:
    """The type that a quantizer rounds to. Types with more steps than int8 count as int8."""
    for argument in (*node.args, *node.kwargs.values()):
        name = str(argument).removeprefix("torch.").replace("float8_", "float8")
        if isinstance(argument, str | torch.dtype) and name in QUANTIZER_TYPES and name != "int8":
            return name
    if _has_name(node, "trtbuild.fake_quantize_two_levels"):
        return "float4e2m1"
    if not _has_name(node, "aten.", _QUANTIZERS):
        return "int8"
    # Some operators have an axis after the input, the scale and the zero point. The last two integers are the limits.
    limits = [argument for argument in node.args[3:] if isinstance(argument, int)][-2:]
    if len(limits) < 2:
        return "int8"
    smallest, largest = limits
    return "int4" if largest - smallest < _FEWEST_INT8_STEPS else "int8"


@dataclass(frozen=True)
class Unquantized:
    """A program without its quantizers. `removed` is the number of quantizers that were removed.

    `left` are the operators because of which the program is not the float model: quantizers that could not be removed or,
    without such quantizers, dequantizers of numbers that depend on inputs. `stored` are the types of the other
    dequantizers' numbers: of weights that are stored as quantized numbers, or whose quantizer is in `left`."""

    program: Program
    removed: int
    stored: tuple[str, ...]
    left: tuple[str, ...]


def has_quantizers(program: Program) -> bool:
    """Whether a program calls quantizers or dequantizers."""
    return any(is_quantizer(node) or _has_name(node, *_DEQUANTIZERS) for node in program.graph.nodes)


def without_quantizers(program: Program) -> Unquantized:
    """Remove the quantizers of `program` in place."""
    graph = program.graph
    removed = 0
    left: list[str] = []
    for node in list(graph.nodes):
        if _has_name(node, *_FAKE_QUANTIZERS):
            _replace(node, node.args[0])
        elif _has_name(node, _QUANTIZERS):
            dequantizers = _dequantizers_of(node)
            if dequantizers is None:
                left.append(target_name(node.target))
                continue
            for dequantizer in dequantizers:
                _replace(dequantizer, _cast(dequantizer.args[0], node.args[0].meta["val"].dtype, dequantizer))
            _replace(node, node.args[0])
        else:
            continue
        removed += 1
    has_left_quantizers = bool(left)
    stored: dict[str, None] = {}
    variables = set(program.input_nodes)  # values that depend on inputs
    for node in graph.nodes:
        if not variables.isdisjoint(node.all_input_nodes):
            variables.add(node)
        if not _has_name(node, *_DEQUANTIZERS):
            continue
        if node not in variables:
            stored[_stored_type(node)] = None
        elif not has_left_quantizers:  # otherwise the dequantizer may belong to a quantizer in `left`
            left.append(target_name(node.target))
    program.exported.graph_module.recompile()
    return Unquantized(program, removed, tuple(stored), tuple(left))


def _has_name(node: torch.fx.Node, *beginnings: str) -> bool:
    return node.op == "call_function" and target_name(node.target).startswith(beginnings)


def _dequantizers_of(quantizer: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The dequantizers of a quantizer's numbers; None if the numbers are used in another way (rules 1 and 3)."""
    found: list[torch.fx.Node] = []
    waiting = [quantizer]
    while waiting:
        for user in waiting.pop().users:
            if _has_name(user, *_DEQUANTIZERS):
                found.append(user)
            elif user.op == "call_function" and _short_name(user) in _MOVES:
                waiting.append(user)
            else:
                return None
    return found


def _short_name(node: torch.fx.Node) -> str:
    """``aten.view.default`` → ``view``."""
    return target_name(node.target).removeprefix("aten.").partition(".")[0]


def _cast(value: Any, dtype: torch.dtype, dequantizer: torch.fx.Node) -> Any:
    """`value` in the type of a dequantizer's result. `dtype` is the type of the quantizer's input."""
    result_dtype = dequantizer.meta["val"].dtype
    if result_dtype == dtype:
        return value
    with dequantizer.graph.inserting_before(dequantizer):
        return dequantizer.graph.call_function(torch.ops.aten.to.dtype, (value, result_dtype))


def _replace(node: torch.fx.Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)


def _stored_type(dequantizer: torch.fx.Node) -> str:
    for argument in dequantizer.args:
        if isinstance(argument, str):
            return argument
    value = dequantizer.args[0]
    return str(value.meta["val"].dtype).removeprefix("torch.") if isinstance(value, torch.fx.Node) else "int8"
