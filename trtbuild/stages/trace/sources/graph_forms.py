"""What a trace makes of a model that comes as a graph of its own, for which nothing is exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Given:
    """`blob` is the model between the steps (`trtbuild.stages.graphs`), `interface` what it looks like from outside (in the
    form of `trtbuild.stages.trace.export.interface`), `weights` are (slot number, value) of all weights, on the CPU."""

    blob: bytes
    interface: dict[str, Any]
    weights: list[tuple[int, torch.Tensor]]


@dataclass(frozen=True)
class Makers:
    """What makes such models, handed in by whoever may know both: the trace knows neither other stages nor toolchains.

    `onnx` makes the blob of an ONNX model (`trtbuild.stages.graphs.onnx_model.blob`). `network` runs a function that
    defines a TensorRT network and records what it does (`trtbuild.toolchain.networks.recording.record`), `network_blob`
    makes the blob of that (`trtbuild.stages.graphs.network.blob`). `text` and `names` are, for a form and a blob, what
    `trtbuild.stages.graphs.forms` says.
    """

    onnx: Callable[..., bytes]
    network: Callable[..., Any]
    network_blob: Callable[..., bytes]
    text: Callable[[str, bytes], str]
    names: Callable[[str, bytes], list[tuple[str, str, str]]]
