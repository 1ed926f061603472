"""Write an ONNX model so that TensorRT's parser computes the results that ONNX defines.

Rules
1. LogSoftmax is written as ``x - max - log(sum(exp(x - max)))``. The parser replaces it by a softmax and a logarithm, which
   gives -inf for a number far below the largest one. For PyTorch models, the lower step does the same.
2. Pooling with `ceil_mode`: ONNX leaves out a last window that begins in the padding at the end. The parser's layer has
   this window. If ONNX leaves out the last window of each axis, the model gets ``ceil_mode=0``. Other such poolings are
   refused.
3. Mod of floats with ``fmod=1`` is refused. The parser divides and rounds the quotient, so ``fmod(1.0, 0.1)`` gives 0
   instead of 0.1. If the divisor is a power of two, the quotient is exact.
4. ConvTranspose with `output_shape`: ONNX pads the beginning by one element more if the padding is odd. The parser pads
   the end. With an automatic padding, the parser ignores `output_shape`. So the padding is written out.
5. AveragePool with `ceil_mode` and `count_include_pad`: a window may end after the padding, and TensorRT gives another
   average for it (`trtbuild.stages.lower.operators.windows.pools`, rule 2). So the padding becomes a part of the input.
   The parser computes LpPool from such averages, so LpPool gets enough padding at the end.
6. GlobalLpPool of an odd order gets an Abs, because the parser adds the powers of negative numbers to the sum.
7. Selu gets the default numbers of ONNX as attributes. The parser has the rounded numbers of opset 1.
8. Recurrent operators with ``layout=1`` are refused. The parser ignores it, and takes the batch for the sequence.
9. A Loop with scan outputs is refused if its condition may end it. The parser's scan outputs have a row for each of the
   `M` iterations, also for those that do not run. In ONNX they have fewer rows.
10. Clip with constant bounds in the wrong order: ONNX gives the upper bound, TensorRT's layer gives the lower one. So the
   lower bound becomes the upper one. If a bound is not known here, the Clip is written as Max and Min. For bounds that are
   not constant, the parser does the same.
11. TopK, ArgMax and ArgMin of floats: TensorRT gives the index -1 for an infinity that is the last in the order. So the
   operator gets the operand with this infinity replaced by the finite number beside it. The values of TopK are gathered
   from the operand itself. The finite number then equals the infinity in the order. Before opset 11, ONNX has no
   GatherElements, so the operators do not change.
12. ReduceLogSumExp of floats is written as ``max + log(sum(exp(x - max)))``, where the infinities of `max` are replaced by
   finite numbers. The parser does not subtract the maximum, so it gives inf for ``x = 100``. Before opset 8, Max and Min do
   not broadcast, so the operator does not change.
13. NonMaxSuppression without a score threshold: ONNX keeps boxes of every score, the parser takes 0 as the threshold. So
   the node gets the lowest finite number. Without `max_output_boxes_per_class`, ONNX selects nothing, and TensorRT selects
   boxes. Such a node is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper as h

from trtbuild.errors import ConversionRefused

_POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_SEARCHES = frozenset(("ArgMax", "ArgMin", "TopK"))
_CHANGED = {
    *_POOLS,
    *_RECURRENT,
    *_SEARCHES,
    "Clip",
    "ConvTranspose",
    "GlobalLpPool",
    "LogSoftmax",
    "Loop",
    "Mod",
    "NonMaxSuppression",
    "ReduceLogSumExp",
    "Selu",
}
#: Attribute of Selu → its default since opset 6.
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}

#: The element type and the sizes of a value (None for what is not known).
_Type = tuple[int, list[int | None] | None]
#: Name of a value → its type.
_Types = Mapping[str, _Type]
#: Name of a constant with one element → its number.
_Numbers = Mapping[str, Any]
#: A value whose type is not known counts as a float32 value: such a LogSoftmax gets no Cast, and such a Mod is refused.
#: Rule 11 does not change its operator.
_UNKNOWN: _Type = onnx.TensorProto.UNDEFINED, None
#: Element type → its largest finite number.
_LARGEST = {
    onnx.TensorProto.FLOAT: float(np.finfo(np.float32).max),
    onnx.TensorProto.FLOAT16: float(np.finfo(np.float16).max),
    onnx.TensorProto.BFLOAT16: (2 - 2**-7) * 2.0**127,
}
_FLOATS = frozenset(_LARGEST)


def parser_form(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return `model` in a form that the parser reads rightly; `model` itself if nothing changes. New nodes have the name of
    the node that they replace. Raises ConversionRefused."""
    if not any(node.op_type in _CHANGED for node in _all_nodes(model.graph)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    types = _types(model)
    constants: list[onnx.TensorProto] = []
    _change_graph(result.graph, opset, types, constants, _numbers(model), _read_names(model))
    result.graph.initializer.extend(constants)
    return result


def _change_graph(
    graph: onnx.GraphProto,
    opset: int,
    types: _Types,
    constants: list[onnx.TensorProto],
    numbers: _Numbers,
    read_names: frozenset[str],
) -> None:
    values = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _change_graph(attribute.g, opset, types, constants, numbers, read_names)
        if node.op_type == "LogSoftmax":
            nodes += _written_out(node, opset, types, constants)
            continue
        if node.op_type == "ReduceLogSumExp" and opset >= 8 and _float_element(types, node.input[0]) in _FLOATS:
            nodes += _stable_sum(node, opset, types, constants)
            continue
        if node.op_type in _SEARCHES and opset >= 11 and _element(types, node.input[0]) in _FLOATS:
            nodes += _finite_search(node, types, constants, read_names)
            continue
        if node.op_type in _POOLS and _attribute(node, "ceil_mode", 0) and _drop_ceil_mode(node, types):
            if node.op_type == "LpPool":
                _pad_last_window(node)
            elif _attribute(node, "count_include_pad", 0):
                nodes += _padded_input(node, opset, constants)
        if node.op_type == "ConvTranspose" and _attribute(node, "output_shape", []):
            _write_padding(node, types)
        if node.op_type == "GlobalLpPool" and _attribute(node, "p", 2) % 2:
            absolute = f"{node.output[0]}.absolute"
            nodes.append(h.make_node("Abs", list(node.input), [absolute], name=node.name))
            node.input[0] = absolute
        if node.op_type == "Clip":
            nodes += _order_bounds(node, numbers)
        if node.op_type == "NonMaxSuppression":
            _write_threshold(node, constants)
        if node.op_type == "Selu" and opset >= 6:
            for name, number in _SELU.items():
                _set_attribute(node, name, _attribute(node, name, number))
        if node.op_type in _RECURRENT and _attribute(node, "layout", 0):
            raise ConversionRefused(
                f"{node.op_type} has layout=1, which TensorRT's parser ignores",
                hint="export the model with layout=0, and transpose the operands",
            )
        if node.op_type == "Loop" and _may_end_early(node, numbers):
            raise ConversionRefused(
                "Loop has scan outputs and a condition: TensorRT's outputs have a row for each iteration up to M",
                hint="let the loop run M times, or return its carried values only",
            )
        if node.op_type == "Mod" and _attribute(node, "fmod", 0):
            _refuse_float_mod(node, types, values)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _written_out(
    node: onnx.NodeProto, opset: int, types: _Types, constants: list[onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    """Rule 1. Before opset 13, LogSoftmax sees its operand as a matrix, whose rows end at `axis`."""
    (source,), (result,) = node.input, node.output
    element = _float_element(types, source)
    is_matrix = opset < 13
    axis = 1 if is_matrix else _attribute(node, "axis", -1)
    axes = _add_constant(constants, f"{result}.axes", np.array([axis], np.int64))

    def make(operator: str, operands: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return h.make_node(operator, operands, [output], name=node.name, **attributes)

    def reduce(operator: str, operand: str, output: str, input_since: int) -> onnx.NodeProto:
        if opset >= input_since:
            return make(operator, [operand, axes], output, keepdims=1)
        return make(operator, [operand], output, keepdims=1, axes=[axis])

    x, last = source, result
    if is_matrix:
        yield make("Shape", [source], f"{result}.shape")
        yield make("Flatten", [x], x := f"{result}.rows", axis=_attribute(node, "axis", 1))
        last = f"{result}.matrix"
    if element != onnx.TensorProto.FLOAT:
        yield make("Cast", [x], x := f"{result}.float", to=onnx.TensorProto.FLOAT)
    yield reduce("ReduceMax", x, f"{result}.max", 18)
    yield make("Sub", [x, f"{result}.max"], f"{result}.shifted")
    yield make("Exp", [f"{result}.shifted"], f"{result}.exp")
    yield reduce("ReduceSum", f"{result}.exp", f"{result}.sum", 13)
    yield make("Log", [f"{result}.sum"], f"{result}.log")
    difference = last if element == onnx.TensorProto.FLOAT else f"{result}.wide"
    yield make("Sub", [f"{result}.shifted", f"{result}.log"], difference)
    if difference != last:
        yield make("Cast", [difference], last, to=element)
    if is_matrix:
        yield make("Reshape", [last, f"{result}.shape"], result)


def _drop_ceil_mode(node: onnx.NodeProto, types: _Types) -> bool:
    """Rule 2. Returns whether a last window may end after the padding."""
    kernel = _attribute(node, "kernel_shape", [])
    axes = len(kernel)
    steps, gaps = _attribute(node, "strides", [1] * axes), _attribute(node, "dilations", [1] * axes)
    pads = _attribute(node, "pads", [0] * 2 * axes)
    if _attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    _, known_sizes = types.get(node.input[0], _UNKNOWN)
    sizes = [None] * axes if known_sizes is None else known_sizes[-axes:]
    is_left_out, is_rounded_up = False, False
    for size, width, step, gap, begin, end in zip(sizes, kernel, steps, gaps, pads[:axes], pads[axes:], strict=True):
        width = gap * (width - 1) + 1
        if size is None:
            is_left_out, is_rounded_up = is_left_out or step > width - end, True
            continue
        last = -((width - size - begin - end) // step)  # the number of the last window
        if last * step >= size + begin:
            is_left_out = True
        elif (size + begin + end - width) % step:
            is_rounded_up = True
    if is_left_out and is_rounded_up:
        raise ConversionRefused(
            f"{node.op_type} has ceil_mode=1, and its last window begins after the input: TensorRT computes this window",
            hint="export the model with ceil_mode=False and an explicit padding",
        )
    if is_left_out:
        _set_attribute(node, "ceil_mode", 0)
    return is_rounded_up


def _pad_last_window(node: onnx.NodeProto) -> None:
    """Rule 5 for LpPool: zeros change no norm. A window may end after the padding by less than a step."""
    axes = len(_attribute(node, "kernel_shape", []))
    pads = _attribute(node, "pads", [0] * 2 * axes)
    ends = [end + step - 1 for end, step in zip(pads[axes:], _attribute(node, "strides", [1] * axes), strict=True)]
    _set_attribute(node, "pads", [*pads[:axes], *ends])
    _set_attribute(node, "ceil_mode", 0)


def _padded_input(node: onnx.NodeProto, opset: int, constants: list[onnx.TensorProto]) -> Iterator[onnx.NodeProto]:
    """Rule 5 for AveragePool: yields a Pad, and changes the pooling so that its input has the padding."""
    axes = len(_attribute(node, "kernel_shape", []))
    pads = _attribute(node, "pads", [0] * 2 * axes)
    _set_attribute(node, "count_include_pad", 0)
    if not any(pads):
        return
    _set_attribute(node, "pads", [0] * 2 * axes)
    source, padded = node.input[0], f"{node.output[0]}.padded"
    all_pads = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
    node.input[0] = padded
    if opset < 11:
        yield h.make_node("Pad", [source], [padded], name=node.name, pads=all_pads)
        return
    pads_name = _add_constant(constants, f"{padded}.pads", np.array(all_pads, np.int64))
    yield h.make_node("Pad", [source, pads_name], [padded], name=node.name)


def _write_padding(node: onnx.NodeProto, types: _Types) -> None:
    """Rule 4."""
    wanted = _attribute(node, "output_shape", [])
    axes = len(wanted)
    _, sizes = types.get(node.input[0], _UNKNOWN)
    _, kernel = types.get(node.input[1], _UNKNOWN)
    if sizes is None or kernel is None or None in sizes[-axes:] or None in kernel[-axes:]:
        raise ConversionRefused(
            "ConvTranspose has output_shape, and its padding depends on a dynamic size",
            hint="export the model with explicit pads, or declare a static size",
        )
    steps, gaps = _attribute(node, "strides", [1] * axes), _attribute(node, "dilations", [1] * axes)
    extras = _attribute(node, "output_padding", [0] * axes)
    padding = _attribute(node, "auto_pad", b"NOTSET")
    totals = [
        step * (size - 1) + extra + gap * (width - 1) + 1 - count
        for size, width, step, gap, extra, count in zip(
            sizes[-axes:], kernel[-axes:], steps, gaps, extras, wanted, strict=True
        )
    ]
    if padding == b"NOTSET" and all(total <= 0 or total % 2 == 0 for total in totals):
        return
    ends = [max(total, 0) // 2 for total in totals]
    begins = [max(total, 0) - end for total, end in zip(totals, ends, strict=True)]
    _set_attribute(node, "pads", [*ends, *begins] if padding == b"SAME_UPPER" else [*begins, *ends])
    _set_attribute(node, "output_padding", [extra - min(total, 0) for extra, total in zip(extras, totals, strict=True)])
    kept = [entry for entry in node.attribute if entry.name not in ("auto_pad", "output_shape")]
    del node.attribute[:]
    node.attribute.extend(kept)


def _order_bounds(node: onnx.NodeProto, numbers: _Numbers) -> Iterator[onnx.NodeProto]:
    """Rule 10. The bounds are attributes before opset 11. May yield a Max, and then the node becomes a Min."""
    low, high = (_attribute(node, name, None) for name in ("min", "max"))
    if low is not None and high is not None:
        _set_attribute(node, "min", min(low, high))
    if len(node.input) < 3 or not all(node.input):
        return
    source, low_name, high_name = node.input
    low, high = numbers.get(low_name), numbers.get(high_name)
    if low is None or high is None:
        raised = f"{node.output[0]}.raised"
        yield h.make_node("Max", [source, low_name], [raised], name=node.name)
        del node.input[:]
        node.input.extend([raised, high_name])
        node.op_type = "Min"
    elif low > high:
        node.input[1] = high_name


def _stable_sum(
    node: onnx.NodeProto, opset: int, types: _Types, constants: list[onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    """Rule 12. The axes are an input of ReduceSum since opset 13, and of ReduceMax since opset 18."""
    source, result = node.input[0], node.output[0]
    element = _float_element(types, source)
    axes = _attribute(node, "axes", None)
    axes_inputs = [*node.input[1:]]
    if axes is not None and 13 <= opset < 18:
        axes_inputs = [_add_constant(constants, f"{result}.axes", np.array(axes, np.int64))]
    options = {"noop_with_empty_axes": 1} if _attribute(node, "noop_with_empty_axes", 0) else {}
    limit = _LARGEST[element]
    lowest, largest = (
        _add_number(constants, f"{result}.limit", number, onnx.TensorProto.FLOAT) for number in (-limit, limit)
    )

    def make(operator: str, operands: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return h.make_node(operator, operands, [output], name=node.name, **attributes)

    def reduce(operator: str, operand: str, output: str, keepdims: int, input_since: int) -> onnx.NodeProto:
        if opset >= input_since:
            return make(operator, [operand, *axes_inputs], output, keepdims=keepdims, **options)
        return make(operator, [operand], output, keepdims=keepdims, **({} if axes is None else {"axes": axes}))

    def finite_max(name: str, keepdims: int) -> Iterator[onnx.NodeProto]:
        yield reduce("ReduceMax", x, f"{name}.any", keepdims, 18)
        yield make("Max", [f"{name}.any", lowest], f"{name}.raised")
        yield make("Min", [f"{name}.raised", largest], name)

    x, keepdims, is_wide = source, _attribute(node, "keepdims", 1), element == onnx.TensorProto.FLOAT
    if not is_wide:
        yield make("Cast", [x], x := f"{result}.float", to=onnx.TensorProto.FLOAT)
    yield from finite_max(f"{result}.max", 1)
    if not keepdims:
        yield from finite_max(f"{result}.reduced_max", 0)
    yield make("Sub", [x, f"{result}.max"], f"{result}.shifted")
    yield make("Exp", [f"{result}.shifted"], f"{result}.exp")
    yield reduce("ReduceSum", f"{result}.exp", f"{result}.sum", keepdims, 13)
    yield make("Log", [f"{result}.sum"], f"{result}.log")
    total = result if is_wide else f"{result}.wide"
    yield make("Add", [f"{result}.log", f"{result}.max" if keepdims else f"{result}.reduced_max"], total)
    if not is_wide:
        yield make("Cast", [total], result, to=element)


def _finite_search(
    node: onnx.NodeProto, types: _Types, constants: list[onnx.TensorProto], read_names: frozenset[str]
) -> Iterator[onnx.NodeProto]:
    """Rule 11. Yields the nodes that replace `node`."""
    is_top = node.op_type == "TopK"
    if is_top and (len(node.output) < 2 or node.output[1] not in read_names):
        yield node
        return
    is_largest = node.op_type == "ArgMax" or (is_top and _attribute(node, "largest", 1))
    source, finite = node.input[0], f"{node.output[-1]}.finite"
    element = _element(types, source)
    limit = _add_number(constants, f"{finite}.limit", -_LARGEST[element] if is_largest else _LARGEST[element], element)
    yield h.make_node("Max" if is_largest else "Min", [source, limit], [finite], name=node.name)
    node.input[0] = finite
    yield node
    if is_top and node.output[0] in read_names:
        values, indices = node.output
        node.output[0] = f"{finite}.values"
        axis = _attribute(node, "axis", -1)
        yield h.make_node("GatherElements", [source, indices], [values], name=node.name, axis=axis)


def _write_threshold(node: onnx.NodeProto, constants: list[onnx.TensorProto]) -> None:
    """Rule 13. A threshold of overlaps that is left out is 0 in ONNX."""
    _, _, count, overlap, threshold = [*node.input, "", "", ""][:5]
    if not count:
        raise ConversionRefused(
            "NonMaxSuppression has no max_output_boxes_per_class: ONNX selects no boxes, TensorRT selects some",
            hint="export the model with a number of boxes",
        )
    if threshold:
        return
    result = node.output[0]
    if not overlap:
        overlap = _add_constant(constants, f"{result}.overlap", np.zeros(1, np.float32))
    lowest = np.array([-_LARGEST[onnx.TensorProto.FLOAT]], np.float32)
    del node.input[3:]
    node.input.extend([overlap, _add_constant(constants, f"{result}.threshold", lowest)])


def _add_constant(constants: list[onnx.TensorProto], name: str, value: np.ndarray) -> str:
    """Add a constant of the outer graph, and return its name. The name has a number, because two nested graphs may have
    values of the same name."""
    unique = f"{name}.{len(constants)}"
    constants.append(onnx.numpy_helper.from_array(value, unique))
    return unique


def _add_number(constants: list[onnx.TensorProto], name: str, number: float, element: int) -> str:
    """Like `_add_constant`, for a scalar of any element type."""
    unique = f"{name}.{len(constants)}"
    constants.append(h.make_tensor(unique, element, [], [number]))
    return unique


def _set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, h.make_attribute(name, value)])


def _may_end_early(node: onnx.NodeProto, numbers: _Numbers) -> bool:
    """Rule 9. A Loop without a condition runs `M` times."""
    if len(node.input) < 2 or not node.input[1] or not any(node.output[len(node.input) - 2 :]):
        return False
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    sources = {
        name: inner.input[0] for inner in body.node if inner.op_type in ("Cast", "Identity") for name in inner.output
    }
    condition = body.output[0].name
    while condition in sources:
        condition = sources[condition]
    # The second test covers the first condition, which is an input of the body.
    is_kept_true = condition == body.input[1].name or bool(numbers.get(condition, False))
    return not is_kept_true or not numbers.get(node.input[1], False)


def _numbers(model: onnx.ModelProto) -> _Numbers:
    """The constants with one element. If nested graphs have constants of the same name and of other values, the number is
    not known."""
    found: dict[str, list[Any]] = {}
    for graph in _all_graphs(model.graph):
        for tensor in graph.initializer:
            found.setdefault(tensor.name, []).append(_number(tensor))
        for node in graph.node:
            for name in node.output:
                number = _number(h.get_attribute_value(node.attribute[0])) if node.op_type == "Constant" else None
                found.setdefault(name, []).append(number)
        for value in graph.input:
            found.setdefault(value.name, []).append(None)
    return {name: first for name, (first, *others) in found.items() if first is not None and {*others} <= {first}}


def _number(value: Any) -> Any:
    """The number of a tensor, or of an attribute of a Constant; None if it has not exactly one element."""
    if not isinstance(value, onnx.TensorProto):
        return value if isinstance(value, int | float) else None
    if value.data_location == onnx.TensorProto.EXTERNAL or math.prod(value.dims) != 1:
        return None
    return onnx.numpy_helper.to_array(value).item()


def _refuse_float_mod(node: onnx.NodeProto, types: _Types, values: Mapping[str, onnx.TensorProto]) -> None:
    """Rule 3."""
    element = _float_element(types, node.output[0])
    divisor = values.get(node.input[1])
    if element not in _FLOATS or (divisor is not None and _are_exact(onnx.numpy_helper.to_array(divisor))):
        return
    raise ConversionRefused(
        "TensorRT rounds the quotient of Mod with fmod=1, so floats may have another remainder than in ONNX",
        hint="compute the remainder outside of the model, or divide by a power of two",
    )


def _are_exact(divisors: np.ndarray) -> bool:
    """Whether all divisors are powers of two of at least 1."""
    numbers: list[float] = divisors.astype(np.float64).ravel().tolist()
    return all(abs(number) >= 1 and abs(math.frexp(number)[0]) == 0.5 for number in numbers)


def _types(model: onnx.ModelProto) -> _Types:
    """The types of all values. If nested graphs have values of the same name and of other types, what differs is
    unknown."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types: dict[str, _Type] = {}
    for each in _all_graphs(graph):
        for tensor in each.initializer:
            _add_type(types, tensor.name, tensor.data_type, list(tensor.dims))
        for value in (*each.input, *each.value_info, *each.output):
            tensor_type = value.type.tensor_type
            sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor_type.shape.dim]
            _add_type(types, value.name, tensor_type.elem_type, sizes if tensor_type.HasField("shape") else None)
    return types


def _add_type(types: dict[str, _Type], name: str, element: int, sizes: list[int | None] | None) -> None:
    first, first_sizes = types.setdefault(name, (element, sizes))
    if first != element:
        types[name] = _UNKNOWN
    elif first_sizes != sizes:
        types[name] = element, None


def _element(types: _Types, name: str) -> int:
    """The element type of a value; UNDEFINED, which is 0, if it is not known."""
    element, _ = types.get(name, _UNKNOWN)
    return element


def _float_element(types: _Types, name: str) -> int:
    """The element type of a value; FLOAT if it is not known."""
    return _element(types, name) or onnx.TensorProto.FLOAT


def _read_names(model: onnx.ModelProto) -> frozenset[str]:
    """The names that nodes read, or that a graph returns."""
    graphs = [*_all_graphs(model.graph)]
    results = {value.name for graph in graphs for value in graph.output}
    return frozenset(results.union(*(node.input for graph in graphs for node in graph.node)))


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_graphs(attribute.g)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for each in _all_graphs(graph):
        yield from each.node


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((h.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)
