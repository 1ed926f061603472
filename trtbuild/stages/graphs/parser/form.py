"""Change a whole model: `parser_form`, and the table of the operators that it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx

from trtbuild.stages.graphs.parser import elements, log_sums, loops, searches, windows
from trtbuild.stages.graphs.parser.graph import ModelFacts
from trtbuild.stages.onnx_graphs import all_nodes

#: Operator → a function that takes a node, and yields the nodes that replace it. It may change the node and yield it. New
#: nodes get the name of the old one. If no form is right, the function raises ConversionRefused.
_FORMS: Mapping[str, Callable[[onnx.NodeProto, ModelFacts], Iterable[onnx.NodeProto]]] = {
    "ArgMax": searches.search_finite_numbers,
    "ArgMin": searches.search_finite_numbers,
    "AveragePool": windows.pool,
    "Clip": elements.order_bounds,
    "ConvTranspose": windows.write_padding,
    "GRU": loops.refuse_batch_first,
    "GlobalLpPool": windows.add_absolute,
    "GridSample": windows.refuse_grids,
    "LSTM": loops.refuse_batch_first,
    "LogSoftmax": log_sums.write_out_log_softmax,
    "Loop": loops.refuse_early_end,
    "LpPool": windows.pool,
    "MaxPool": windows.pool,
    "Mod": elements.refuse_float_mod,
    "NonMaxSuppression": searches.write_threshold,
    "QuantizeLinear": elements.refuse_overflow,
    "RNN": loops.refuse_batch_first,
    "ReduceL1": elements.write_reduction_of_no_axes,
    "ReduceL2": elements.write_reduction_of_no_axes,
    "ReduceLogSum": elements.write_reduction_of_no_axes,
    "ReduceLogSumExp": log_sums.write_out_log_sum_exp,
    "ReduceSumSquare": elements.write_reduction_of_no_axes,
    "Resize": windows.refuse_tensorflow_pixels,
    "Selu": elements.write_selu_numbers,
    "TopK": searches.search_finite_numbers,
    "Trilu": elements.write_half,
}


def parser_form(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return `model` in a form for which the parser computes the right results, or `model` itself if it has no
    operator of `_FORMS`. Raises ConversionRefused."""
    if not any(node.op_type in _FORMS for node in all_nodes(model.graph)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    facts = ModelFacts(model, opset)
    _change_graph(result.graph, facts)
    result.graph.initializer.extend(facts.new_constants)
    return result


def _change_graph(graph: onnx.GraphProto, facts: ModelFacts) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _change_graph(attribute.g, facts)
        form = _FORMS.get(node.op_type)
        nodes += [node] if form is None else form(node, facts)
    del graph.node[:]
    graph.node.extend(nodes)
