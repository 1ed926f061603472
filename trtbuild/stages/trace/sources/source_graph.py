"""Types for sources that are a graph already: ONNX models and TensorRT networks. Their trace does not call torch.export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SourceGraph:
    """The graph that a source describes, with its interface and its weights.

    The handler of the graph's kind (`trtbuild.stages.graphs.handlers`) makes `text` and `names` from `blob`.
    """

    #: The form in which the steps store the graph.
    blob: bytes
    #: The text of the graph, from which keys are computed.
    text: str
    #: For each node: the name in the user's graph, the operator, and an empty text in place of the modules around it.
    names: list[tuple[str, str, str]]
    #: In the form of `trtbuild.stages.trace.export.interface`.
    interface: dict[str, Any]
    #: (slot number, value) of all weights, on the CPU.
    weights: list[tuple[int, torch.Tensor]]


class GraphHandler(Protocol):
    """The part of `trtbuild.stages.graphs.handlers.GraphHandler` that a trace calls."""

    @property
    def make_blob(self) -> Callable[..., bytes]: ...

    @property
    def graph_text(self) -> Callable[[bytes], str]: ...

    @property
    def node_names(self) -> Callable[[bytes], list[tuple[str, str, str]]]: ...


@dataclass(frozen=True)
class GraphFunctions:
    """Functions that a trace calls for sources that are a graph already. The caller of the trace passes them, because a
    trace imports neither a toolchain nor `trtbuild.stages.graphs`."""

    #: Returns the handler of a kind of graph, by the kind's name.
    handler: Callable[[str], GraphHandler]
    #: Records the calls with which a function defines a TensorRT network (`toolchain.networks.recording.record_network`).
    record: Callable[..., Any]
