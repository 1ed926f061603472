"""The worker's functions for graphs that are not lowered: ONNX models and TensorRT networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.driver.workers.results import Context, Result
from trtbuild.stages.trace.sources.source_graph import GraphFunctions

if TYPE_CHECKING:
    from trtbuild.stages.graphs.handlers import GraphHandler, ParserRefusal


def graph_handler(graph_kind: str) -> GraphHandler:
    """Return the handler of a graph kind. The first call imports the libraries of all handlers."""
    from trtbuild.stages.graphs.handlers import HANDLERS

    return HANDLERS[graph_kind]


def graph_functions() -> GraphFunctions:
    """Return the functions that a trace calls for ONNX models and networks. Each function imports its libraries itself."""

    def record_network(
        define: Callable[[Any, Any], object], declared_inputs: Sequence[tuple[Any, ...]], check: Any
    ) -> Any:
        from trtbuild.toolchain.networks.recording import NetworkInput, record_network

        return record_network(define, [NetworkInput(*entry) for entry in declared_inputs], check)

    return GraphFunctions(graph_handler, record_network)


def lower(job: LowerJob, context: Context) -> Result:
    """Return the traced ONNX model or network unchanged."""
    store, handler = context.store, graph_handler(job.graph_kind)
    blob = store.get_bytes(job.program)
    return Result(
        {
            "program": store.put_bytes(blob),
            "graph": store.put_bytes(handler.graph_text(blob).encode()),
            "modules": store.put_bytes(json.dumps(handler.node_names(blob)).encode()),
        }
    )


def partition(job: PartitionJob, context: Context) -> Result:
    """Make one partition of the whole model. An ONNX model that the toolchain's parser refuses is an error."""

    def refusal_of_parser(model: bytes) -> ParserRefusal | None:
        from trtbuild.toolchain.compiling.parsing import Parser

        return Parser(job.toolchain, job.toolchain_version, job.stand_in).find_refusal(model)

    store = context.store
    partitioned = graph_handler(job.graph_kind).make_partition(
        store.get_bytes(job.program), job.opset, refusal_of_parser
    )
    return Result(
        {
            "partitions": store.put_bytes(partitioned.document.to_bytes()),
            f"program:{partitioned.graph}": store.put_bytes(partitioned.model),
        }
    )


def convert(job: ConvertJob, context: Context) -> Result:
    """Return the partition's model unchanged, with the origin of each node: its index among the ONNX nodes or the network's
    layers."""
    store = context.store
    model = store.get_bytes(job.program)
    origins = [[name, number] for name, number in graph_handler(job.graph_kind).origins(model)]
    return Result({"onnx": store.put_bytes(model), "origins": store.put_bytes(json.dumps(origins).encode())})
