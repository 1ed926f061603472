"""Describe sources that are a graph already: ONNX models and TensorRT networks. Their trace does not call torch.export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SourceGraph:
    """The graph that a source describes, with its interface and its weights.

    `blob` is the form in which the steps store the graph. The handler of the graph's kind
    (`trtbuild.stages.graphs.handlers`) makes `text` (the graph text for keys) and `names` from the blob. `names` has for
    each node: the name in the user's graph, the operator, and an empty text. `interface` has the form of
    `trtbuild.stages.trace.export.interface`. `weights` are (slot number, value) of all weights, on the CPU.
    """

    blob: bytes
    text: str
    names: list[tuple[str, str, str]]
    interface: dict[str, Any]
    weights: list[tuple[int, torch.Tensor]]


class GraphHandler(Protocol):
    """The part of `trtbuild.stages.graphs.handlers.GraphHandler` that a trace calls."""

    @property
    def blob(self) -> Callable[..., bytes]: ...

    @property
    def text(self) -> Callable[[bytes], str]: ...

    @property
    def names(self) -> Callable[[bytes], list[tuple[str, str, str]]]: ...


@dataclass(frozen=True)
class GraphFunctions:
    """Functions that a trace calls for sources that are a graph already. The caller of the trace passes them, because a
    trace imports neither a toolchain nor `trtbuild.stages.graphs`.

    `handler` returns the handler of a kind of graph, by the kind's name. `record` records the calls with which a
    function defines a TensorRT network (`trtbuild.toolchain.networks.recording.record_network`).
    """

    handler: Callable[[str], GraphHandler]
    record: Callable[..., Any]
