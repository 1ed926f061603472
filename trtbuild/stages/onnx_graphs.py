"""Walk through an ONNX graph and the graphs that are nested in it (branches of If, bodies of Loop and Scan).

`nested_graphs` and `all_nodes` also accept a function of a model (FunctionProto), because they read only its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and then its nested graphs."""
    yield graph
    yield from nested_graphs(graph)


def nested_graphs(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_graphs(attribute.g)


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, and then those of its nested graphs."""
    yield from graph.node
    for nested in nested_graphs(graph):
        yield from nested.node
