"""Sources that are a graph already (ONNX models and TensorRT networks). Their trace does not call torch.export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SourceGraph:
    """The graph of a source that is a graph already.

    `blob` is the form in which the steps store the graph. `text` and `names` are the results of its handler for the blob
    (`trtbuild.stages.graphs.handlers`). `interface` has the form of `trtbuild.stages.trace.export.interface`. `weights` are
    (slot number, value) of all weights, on the CPU.
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
class Makers:
    """Functions that read sources which are a graph already. The caller of a trace passes them, because a trace imports no
    toolchain and no other stage.

    `handler` returns the handler of a kind of graph, by name. `record` runs a function that defines a TensorRT network, and
    records its calls (`trtbuild.toolchain.networks.recording.record`).
    """

    handler: Callable[[str], GraphHandler]
    record: Callable[..., Any]
