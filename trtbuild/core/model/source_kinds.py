"""The kinds of sources: the ways in which a manifest can name a model. Each row of the table is one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.model.graph_kinds import NETWORK, ONNX, PROGRAM, GraphKind


@dataclass(frozen=True)
class SourceKind:
    """One kind of source.

    * `name`: the manifest's field. It is in keys.
    * `graph`: the kind of graph that the trace produces.
    * `reader`: the class in `trtbuild.stages.trace.sources` that reads the source (``module:Class``). It is empty for a
      module in memory.
    * `description`, `example`: for editors and docs/manifest.md.
    * `file`: what messages call the source's file. A manifest's kind without `file` names a callable
      (``module.path:callable``).
    * `has_layers`: whether the reader returns a module with submodules of ``torch.nn``, which `quantize:` needs.
    """

    name: str
    graph: GraphKind
    reader: str = ""
    description: str = ""
    file: str | None = None
    example: str | None = None
    has_layers: bool = False


_ROWS = (
    SourceKind(
        "python",
        PROGRAM,
        "python_source:PythonSource",
        "A callable that returns an `nn.Module` in evaluation mode, as `module.path:callable`.",
        has_layers=True,
    ),
    SourceKind(
        "exported_program",
        PROGRAM,
        "exported_program:ExportedProgramSource",
        "A `.pt2` file of `torch.export.save`.",
        file="the exported program",
        example="vit.pt2",
    ),
    SourceKind(
        "onnx",
        ONNX,
        "onnx_source:OnnxSource",
        "An ONNX file; its external data is beside it.",
        file="the ONNX file",
        example="vit.onnx",
    ),
    SourceKind(
        "torchscript",
        PROGRAM,
        "torchscript:TorchScriptSource",
        "A TorchScript file of `torch.jit.save`.",
        file="the TorchScript file",
        example="vit.ts",
    ),
    SourceKind(
        "network",
        NETWORK,
        "network_source:NetworkSource",
        "A callable that defines a TensorRT network, as `module.path:callable`: it is called with the network, "
        "TensorRT's module and the kwargs.",
    ),
)

#: The kinds that a manifest can name, in the order of docs/manifest.md and of messages.
SOURCE_KINDS: Mapping[str, SourceKind] = {kind.name: kind for kind in _ROWS}
#: The kinds that name a callable, which takes kwargs.
CALLABLE_KINDS = [name for name, kind in SOURCE_KINDS.items() if kind.file is None]
#: The kinds whose layers `quantize:` can replace.
KINDS_WITH_LAYERS = [name for name, kind in SOURCE_KINDS.items() if kind.has_layers]
#: A module that a running program has in memory.
MODULE_IN_MEMORY = SourceKind("module", PROGRAM)
