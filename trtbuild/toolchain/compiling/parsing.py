"""Ask NVIDIA's parser which nodes it accepts, for the partitioner. (`supports_operator` returns True too often.)

Rules
1. A candidate is parsed as a whole, in the same way as the compiler parses it. If the parse succeeds, the candidate is
   accepted.
2. The values of weights are not known during partitioning, and must not matter. The parser reads zeros instead. They are
   windows of one block of memory, each at another address, because TensorRT identifies weights by their address. If
   TensorRT reads a weight's *value* while it parses (an integer buffer used as a model_outline, as axes or as a repeat
   count), it reads zero: a Reshape to (0, 0) means "as the input". If TensorRT refuses the true values later, the compiler
   raises an error with the node. So a wrong answer here cannot lead to a wrong engine.
3. A refusal names every node that is known to be refused: the nodes that the parser names, and the nodes that
   `supports_model_v2` leaves out of its subgraphs.
4. A node whose element type the parser changes without an error counts as refused (`foreign_types`).
5. The parser of `tensorrt` needs a GPU. Without a GPU, TensorRT-RTX's parser is asked instead. In addition, the known
   properties of the release are applied: its element types, and operators that it refuses
   (`trtbuild.core.model.stand_in`). If the toolchain's own parser refuses more than that, the engine step raises an
   error with the node.
6. With ``truncate_double`` a float64 weight that is cast to float32 counts as a float32 weight, as in the engine step
   (`trtbuild.toolchain.compiling.double_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtbuild.core.engines.engine_job import DeclaredType
from trtbuild.core.model.spec import ToolchainName
from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.compiling.declared import disagreements
from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.compiling.foreign_types import foreign_nodes
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.library import listening, load
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.networks.network import NodeError, Parsed
from trtbuild.toolchain.onnx_files.onnx_outline import ExternalWeight, Outline, outline

#: Bytes between the starts of two windows (rule 2): enough for the alignment of every element type.
_STEP = 64


@dataclass(frozen=True)
class Refusal:
    """The parser's refusal of a model. `nodes` are the names of the refused ONNX nodes in graph order. If it is empty, the
    model as a whole is refused."""

    nodes: tuple[str, ...]
    messages: tuple[str, ...]
    #: Node → the message about it, if there is one.
    reasons: Mapping[str, str] = field(default_factory=dict)


class Parser:
    """The ONNX parser of one toolchain, or a `stand_in` for it (rule 5).

    Raises ToolchainMissing and EnvironmentFault like `load`, and ToolchainMissing if the parser cannot run here.
    """

    def __init__(
        self,
        toolchain: ToolchainName,
        version: str | None = None,
        stand_in: Mapping[str, Any] | None = None,
        *,
        truncates_double: bool = False,
    ) -> None:
        properties = release(toolchain, version or table.installed_version(toolchain) or "")
        self._dtypes, self._narrows = properties.dtypes, properties.narrows_int64
        self._refused = frozenset(properties.refuses)
        self._truncates_double = truncates_double
        self._name, self._release = f"{toolchain} {version or ''}".rstrip(), properties
        parser: tuple[ToolchainName, str | None] = (toolchain, version)
        if stand_in is not None:
            parser = stand_in["toolchain"], stand_in["version"]
            self._dtypes, self._narrows = tuple(stand_in["dtypes"]), bool(stand_in["narrows_int64"])
            self._refused = frozenset(stand_in["refuses"])
            self._release = release(*parser)
        self._own_reasons = table.FLAVOURS[toolchain].needs_gpu
        self._needs_gpu = table.FLAVOURS[parser[0]].needs_gpu
        self._trt = load(*parser)

    def refused(
        self,
        model: bytes,
        largest: Mapping[str, int] | None = None,
        declared: tuple[Sequence[DeclaredType], Sequence[DeclaredType]] | None = None,
    ) -> Refusal | None:
        """Parse `model` (a result of `convert`). Returns None if the parser accepts it. `largest` maps inputs to the
        largest size of any of their axes, as far as it is known; the compiler checks the other inputs. `declared` are the
        types of the model's inputs and outputs: a network with other types counts as a refusal."""
        if self._truncates_double:
            model, _ = narrow_doubles(model, _zeros(outline(model).weights))
        model_outline = outline(model)
        foreign = foreign_nodes(model_outline, self._dtypes, narrows=self._narrows, largest=largest)
        known = [NodeError(text, name) for name, text in foreign.items()]
        known += [
            NodeError(f"{node.operator}: the parser of {self._name} does not take it", node.name)
            for node in model_outline.nodes
            if node.operator in self._refused
        ]
        with listening(self._trt) as (logger, log):
            builder = self._builder(logger)
            with Parsed(self._trt, builder, logger, log, self._release) as parsed:
                errors = parsed.parse(model, _zeros(model_outline.weights))
                if not errors:
                    errors = (
                        known or parsed.changed_types(model_outline) or _undeclared(parsed, model_outline, declared)
                    )
                    return self._refusal(model_outline, errors, []) if errors else None
            # A parse stops at the first node that fails to convert; supports_model_v2 continues after it.
            with Parsed(self._trt, builder, logger, log, self._release) as parsed:
                pieces, more = parsed.supported(model)
        accepted = {index for piece in pieces for index in piece}
        left_out = [node.name for index, node in enumerate(model_outline.nodes) if index not in accepted]
        return self._refusal(model_outline, [*errors, *more, *known], left_out)

    def _refusal(self, model_outline: Outline, errors: Sequence[NodeError], left_out: Sequence[str]) -> Refusal:
        refused = {error.node for error in errors} | set(left_out)
        texts = (f"{error.node}: {error.text}" if error.node else error.text for error in errors)
        nodes = tuple(node.name for node in model_outline.nodes if node.name in refused)
        # In documents for TensorRT-RTX every node has all messages. Their bytes are in keys, so this must not change.
        reasons = {error.node: error.text for error in reversed(errors)} if self._own_reasons else {}
        return Refusal(nodes, tuple(dict.fromkeys(texts)), reasons)

    def _builder(self, logger: Any) -> Any:
        try:
            return self._trt.Builder(logger)
        except TypeError as error:  # pybind11's error without a GPU: "factory function returned nullptr"
            if not self._needs_gpu:
                raise
            raise ToolchainMissing(
                f"the parser of {self._name} needs a GPU, and this machine has no GPU",
                hint="pip install tensorrt-rtx, whose parser can replace it, or partition it on a machine with a GPU",
            ) from error


def _undeclared(
    parsed: Parsed, model_outline: Outline, declared: tuple[Sequence[DeclaredType], Sequence[DeclaredType]] | None
) -> list[NodeError]:
    differences = [] if declared is None else disagreements(parsed.network, *declared)
    producers = {name: node.name for node in model_outline.nodes for name in node.outputs}
    return [NodeError(f"{name} {text}", producers.get(name, "")) for name, text in differences]


def _zeros(weights: Sequence[ExternalWeight]) -> dict[str, memoryview]:
    largest = max((weight.size_bytes for weight in weights), default=0)
    block: memoryview = np.zeros(largest + _STEP * len(weights), dtype=np.uint8).data
    return {
        weight.name: block[_STEP * index : _STEP * index + weight.size_bytes] for index, weight in enumerate(weights)
    }
