"""The kinds of graphs that a trace produces, and how the steps handle each kind.

Code that depends on the kind of a graph reads a field of `GraphKind`, or is in `trtbuild.stages.graphs`. It does not
compare the kind's name, except to choose the text of a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

GraphKindName = Literal["program", "onnx", "network"]


@dataclass(frozen=True)
class GraphKind:
    """One kind of graph. Jobs and documents contain its `name`.

    * `is_lowered`: whether the graph is lowered and divided into partitions. Otherwise the whole graph becomes one engine.
    * `reference`: the library that computes the model without TensorRT, for `verify` and for a package's reference program.
    * `changes_opset`: whether the partition step converts the graph to the toolchain's ONNX opset.
    * `program_file`: the path of a partition's graph in a package. ``{}`` is for the first 32 digits of the file's SHA-256.
    """

    name: GraphKindName
    is_lowered: bool = False
    reference: Literal["torch", "onnxruntime"] | None = None
    changes_opset: bool = False
    program_file: str = "torch/{}.pt2"

    def program_path(self, sha256: str) -> str:
        """The path, in a package, of the graph whose file has this digest.

        The path has the digest, because the steps for two toolchains may store the same graph as different bytes.
        """
        return self.program_file.format(sha256[:32])


#: A program of torch.export.
PROGRAM = GraphKind("program", is_lowered=True, reference="torch")
#: An ONNX model.
ONNX = GraphKind("onnx", reference="onnxruntime", changes_opset=True, program_file="onnx/{}.onnx")
#: A recorded TensorRT network. A package has no file for it, because only TensorRT can run it.
NETWORK = GraphKind("network")

GRAPH_KINDS: Mapping[str, GraphKind] = {kind.name: kind for kind in (PROGRAM, ONNX, NETWORK)}
