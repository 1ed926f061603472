"""Asking NVIDIA's parser what it takes. The partitioner rests on this; `supports_operator` says yes too often (FACTS).

Rules
1. The question is a whole candidate, parsed as the compiler would parse it; what parses is taken.
2. The values of weights are not known when a model is partitioned, and must not matter. The parser sees zeros: windows
   of one block of memory, each at its own place, because TensorRT tells weights apart by their address. A weight whose
   *value* TensorRT reads while it parses (an integer buffer used as a shape, as axes or as a repeat count) is judged by
   zero: a Reshape to (0, 0) means "as the input". Should the true values then be refused, the compiler says so, with the
   node; nothing wrong can be built from a wrong answer here.
3. A refusal names every node that is known to be refused: those that the parser names, and those that
   `supports_model_v2` leaves out of its subgraphs.
4. What the parser takes by changing an element type in silence counts as refused (`element_types`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtbuild.core.spec import ToolchainName
from trtbuild.toolchain.element_types import foreign_nodes
from trtbuild.toolchain.library import listening, load
from trtbuild.toolchain.network import NodeError, Parsed
from trtbuild.toolchain.onnx_outline import ExternalWeight, Outline, outline
from trtbuild.toolchain.table import FLAVOURS

#: Bytes between the windows: what any type of element may be aligned to.
_STEP = 64


@dataclass(frozen=True)
class Refusal:
    """Why the parser does not take a model. `nodes` are ONNX node names in graph order; none means the model as a whole."""

    nodes: tuple[str, ...]
    messages: tuple[str, ...]


class Parser:
    """The ONNX parser of one toolchain. Raises ToolchainMissing, EnvironmentFault as `load` does."""

    def __init__(self, toolchain: ToolchainName, version: str | None = None) -> None:
        self._trt = load(toolchain, version)
        self._dtypes = FLAVOURS[toolchain].dtypes

    def refused(self, model: bytes) -> Refusal | None:
        """None when the parser takes `model` (as `convert` leaves it), else what it refuses and why."""
        shape = outline(model)
        foreign = [NodeError(text, name) for name, text in foreign_nodes(shape, self._dtypes).items()]
        with listening(self._trt) as (logger, log):
            builder = self._trt.Builder(logger)
            with Parsed(self._trt, builder, logger, log) as parsed:
                errors = parsed.parse(model, _zeros(shape.weights))
                if not errors:
                    errors = foreign or parsed.changed_types(shape)
                    return _refusal(shape, errors, []) if errors else None
            # A parse stops at the first node that fails to convert; supports_model_v2 goes on behind it.
            with (
                tempfile.TemporaryDirectory(prefix="trtbuild-parse-") as folder,
                Parsed(self._trt, builder, logger, log) as parsed,
            ):
                _empty_files(folder, shape.weights)
                pieces, more = parsed.supported(model, os.path.join(folder, "model.onnx"))
        taken = {index for piece in pieces for index in piece}
        left = [node.name for index, node in enumerate(shape.nodes) if index not in taken]
        return _refusal(shape, [*errors, *more, *foreign], left)


def _refusal(shape: Outline, errors: Sequence[NodeError], left: Sequence[str]) -> Refusal:
    named = {error.node for error in errors} | set(left)
    texts = (f"{error.node}: {error.text}" if error.node else error.text for error in errors)
    return Refusal(tuple(node.name for node in shape.nodes if node.name in named), tuple(dict.fromkeys(texts)))


def _zeros(weights: Sequence[ExternalWeight]) -> dict[str, memoryview]:
    largest = max((weight.size_bytes for weight in weights), default=0)
    block: memoryview = np.zeros(largest + _STEP * len(weights), dtype=np.uint8).data
    return {
        weight.name: block[_STEP * index : _STEP * index + weight.size_bytes] for index, weight in enumerate(weights)
    }


def _empty_files(folder: str, weights: Sequence[ExternalWeight]) -> None:
    """A sparse file of zeros for each weight: `supports_model_v2` reads weights from files only."""
    for weight in weights:
        with open(os.path.join(folder, weight.name), "wb") as file:
            file.truncate(weight.size_bytes)
