"""Ask NVIDIA's ONNX parser which nodes it accepts, for the partitioner.

Rules
1. A candidate for a partition is parsed as a whole, in the same way as the compiler parses it. If the parse succeeds, the
   candidate is accepted, unless another check refuses it. `OnnxParser.supports_operator` is not used, because it returns
   True for operators that the parser then refuses.
2. The values of weights are not known during partitioning, so the parser reads placeholders (`placeholder_weights`). A
   weight that is a shape, axes or a repeat count is then zero, which has another meaning: a Reshape to (0, 0) keeps the
   sizes of its input. So the answer may be wrong. If the parser accepts a node by mistake, the compiler, which has the true
   values, raises an error with the node. A wrong answer never leads to a wrong engine.
3. A refusal names every node that is known to be refused: the nodes in the parser's errors, and the nodes that
   `supports_model_v2` (in older releases: `supports_model`) leaves out of its subgraphs. If the error of a parse has no
   node, it belongs to the node that the log names last. TensorRT-RTX has such errors for ScatterElements with a reduction.
4. A node whose element type the parser changes without an error counts as refused (`foreign_types`).
5. The parser of `tensorrt` needs a GPU. Without a GPU, the parser of TensorRT-RTX is its stand-in. The stand-in also
   refuses the element types and operators that the `tensorrt` release is known to refuse (`trtbuild.core.model.stand_in`).
   If the toolchain's own parser refuses a node that the stand-in accepts, the engine step raises an error with the node.
6. With ``truncate_double``, a float64 weight that is cast to float32 counts as a float32 weight, as in the engine step
   (`trtbuild.toolchain.compiling.double_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.engines.engine_job import DeclaredType
from trtbuild.core.model.spec import ToolchainName
from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.compiling.declared import interface_differences
from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.compiling.foreign_types import foreign_nodes
from trtbuild.toolchain.compiling.placeholder_weights import placeholder_weights, quantizer_scales
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.library import capture_log, load
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.networks.network import NodeError, ParsedNetwork
from trtbuild.toolchain.onnx_files.onnx_outline import Outline, read_outline


@dataclass(frozen=True)
class Refusal:
    """The parser's refusal of a model."""

    #: The names of the refused ONNX nodes, in graph order. Without names, the model as a whole is refused.
    nodes: tuple[str, ...]
    messages: tuple[str, ...]
    #: Name of a node → the first message about it. Nodes without a message are left out. A message without a node has the
    #: name "". For TensorRT-RTX, `reasons` is empty.
    reasons: Mapping[str, str] = field(default_factory=dict)


class Parser:
    """The ONNX parser of one toolchain, or a `stand_in` for it (rule 5).

    `stand_in` has the fields of a `StandInParser`. Raises ToolchainMissing and EnvironmentFault, as `load` does.
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
        self._dtypes, self._narrows_int64 = properties.dtypes, properties.narrows_int64
        self._refused_operators = frozenset(properties.refused_operators)
        self._truncates_double = truncates_double
        self._name, self._release = f"{toolchain} {version or ''}".rstrip(), properties
        parser_toolchain: tuple[ToolchainName, str | None] = (toolchain, version)
        if stand_in is not None:
            parser_toolchain = stand_in["toolchain"], stand_in["version"]
            self._dtypes, self._narrows_int64 = tuple(stand_in["dtypes"]), bool(stand_in["narrows_int64"])
            self._refused_operators = frozenset(stand_in["refuses"])
            self._release = release(*parser_toolchain)
        self._has_reasons_by_node = table.FLAVOURS[toolchain].needs_gpu
        self._needs_gpu = table.FLAVOURS[parser_toolchain[0]].needs_gpu
        self._trt = load(*parser_toolchain)

    def find_refusal(
        self,
        model: bytes,
        largest_sizes: Mapping[str, int] | None = None,
        declared: tuple[Sequence[DeclaredType], Sequence[DeclaredType]] | None = None,
    ) -> Refusal | None:
        """Parse `model`. Returns None if the parser accepts it.

        `largest_sizes` maps inputs to the largest size of their axes, as far as it is known. The compiler later repeats
        the check with the sizes of the profiles. `declared` has the types and sizes of the model's inputs and outputs. If
        those of the network differ, the model counts as refused. Raises ToolchainMissing if the parser cannot run here.
        """
        if self._truncates_double:
            model, _ = narrow_doubles(model, placeholder_weights(read_outline(model)))
        model_outline = read_outline(model)
        foreign = foreign_nodes(
            model_outline, self._dtypes, narrows_int64=self._narrows_int64, largest_sizes=largest_sizes
        )
        known_errors = [NodeError(text, name) for name, text in foreign.items()]
        known_errors += [
            NodeError(f"{node.operator}: the parser of {self._name} does not take it", node.name)
            for node in model_outline.nodes
            if node.operator in self._refused_operators
        ]
        weights = placeholder_weights(model_outline)
        with capture_log(self._trt) as (logger, log):
            builder = self._builder(logger)
            with ParsedNetwork(self._trt, builder, logger, log, self._release) as parsed:
                errors = parsed.parse(model, weights)
                if not errors:
                    errors = (
                        known_errors
                        or parsed.changed_types(model_outline)
                        or _interface_errors(parsed, model_outline, declared)
                    )
                    return self._refusal(model_outline, errors, []) if errors else None
            # The parse has stopped at the first node that the parser refuses. supports_model_v2 continues after it.
            with ParsedNetwork(self._trt, builder, logger, log, self._release) as parsed:
                scales = {name: weights[name] for name in quantizer_scales(model_outline)}
                pieces, more_errors = parsed.supported_pieces(model, scales)
        # If the parse has found the node of each error, errors without a node only repeat these errors.
        if all(error.node for error in errors):
            more_errors = [error for error in more_errors if error.node]
        accepted = {index for piece in pieces for index in piece}
        left_out = [node.name for index, node in enumerate(model_outline.nodes) if index not in accepted]
        return self._refusal(model_outline, [*errors, *more_errors, *known_errors], left_out)

    def _refusal(self, model_outline: Outline, errors: Sequence[NodeError], left_out: Sequence[str]) -> Refusal:
        refused = {error.node for error in errors} | set(left_out)
        texts = (f"{error.node}: {error.text}" if error.node else error.text for error in errors)
        nodes = tuple(node.name for node in model_outline.nodes if node.name in refused)
        # For TensorRT-RTX `reasons` is empty, so the caller gives all messages to every node. This must not change, because
        # package keys contain the messages.
        reasons = {error.node: error.text for error in reversed(errors)} if self._has_reasons_by_node else {}
        return Refusal(nodes, tuple(dict.fromkeys(texts)), reasons)

    def _builder(self, logger: Any) -> Any:
        try:
            return self._trt.Builder(logger)
        except TypeError as error:  # pybind11's error without a GPU: "factory function returned nullptr"
            if not self._needs_gpu:
                raise
            raise ToolchainMissing(
                f"the parser of {self._name} needs a GPU, and this machine has no GPU",
                hint="pip install tensorrt-rtx, because its parser can replace this one, or build on a machine with a GPU",
            ) from error


def _interface_errors(
    parsed: ParsedNetwork,
    model_outline: Outline,
    declared: tuple[Sequence[DeclaredType], Sequence[DeclaredType]] | None,
) -> list[NodeError]:
    differences = [] if declared is None else interface_differences(parsed.network, *declared)
    producers = {name: node.name for node in model_outline.nodes for name in node.outputs}
    return [NodeError(f"{name} {text}", producers.get(name, "")) for name, text in differences]
