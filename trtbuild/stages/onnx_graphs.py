"""Walk through an ONNX graph and the graphs that are nested in it (branches of If, bodies of Loop and Scan)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and then its nested graphs."""
    yield graph
    yield from nested_graphs(graph)


def nested_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_graphs(attribute.g)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, and then those of its nested graphs."""
    for each in all_graphs(graph):
        yield from each.node
