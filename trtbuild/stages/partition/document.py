"""Write the partition step's document. Each piece of the graph (`pieces`) becomes one partition of the document."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from trtbuild.core.model.plugins import Plugin
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.errors import SourceError
from trtbuild.stages.partition.naming import partition_names
from trtbuild.stages.partition.pieces import Piece
from trtbuild.stages.partition.regions import Region
from trtbuild.stages.partition.split import PieceProgram
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.plugins import plugins_called
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import target_name


@dataclass(frozen=True)
class BuiltPiece:
    """A piece and its program."""

    piece: Piece
    region: Region | None  # None: the piece stays in PyTorch
    piece_program: PieceProgram
    text: str  # the program's canonical text


@dataclass(frozen=True)
class PartitionResult:
    """The result of the step: the document, and the programs (SHA-256 of the canonical text → program)."""

    document: Partitions
    programs: Mapping[str, Program]


def make_result(
    program: Program,
    symbols: Symbols,
    built_pieces: Sequence[BuiltPiece],
    reasons: Mapping[int, str],
    plugins: Sequence[Plugin] = (),
) -> PartitionResult:
    """Make partitions of the pieces, which are in an order in which they can run. `reasons`: number of a call that
    stays in PyTorch → the reason. Raises SourceError if an output of the model is a constant."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    call_numbers = {node: number for number, node in enumerate(calls)}
    slots = {node: slot for slot, node in enumerate(program.weight_nodes)}
    sources = {node: f"weight:{slot}" for node, slot in slots.items()}
    sources |= {node: f"input:{number}" for number, node in enumerate(program.input_nodes)}
    partitions: list[Partition] = []
    programs: dict[str, Program] = {}
    names = partition_names([built.region for built in built_pieces])
    for name, built in zip(names, built_pieces, strict=True):
        piece, piece_program = built.piece, built.piece_program
        digest = hashlib.sha256(built.text.encode()).hexdigest()
        programs.setdefault(digest, piece_program.program)
        partitions.append(
            Partition(
                name=name,
                kind="torch" if built.region is None else "tensorrt",
                graph=digest,
                weights=tuple(slots[node] for node in piece.weights),
                inputs=tuple((sources[node], _tensor_type(node, symbols)) for node in piece.inputs),
                outputs=tuple(_tensor_type(node, symbols) for node in piece.outputs),
                calls=tuple(-1 if origin is None else call_numbers[origin] for origin in piece_program.origins),
                reasons=_reasons(piece, reasons) if built.region is None else {},
                plugins=() if built.region is None else _plugin_operators(piece_program.program, plugins),
            )
        )
        sources |= {node: f"{name}:{number}" for number, node in enumerate(piece.outputs)}
    for node in program.output_nodes:
        if node not in sources:
            raise SourceError("an output of the model is a constant", code="constant-output")
    outputs = tuple(sources[node] for node in program.output_nodes)
    return PartitionResult(Partitions(tuple(partitions), outputs), programs)


def _plugin_operators(program: Program, plugins: Sequence[Plugin]) -> tuple[str, ...]:
    return tuple(sorted(plugin.operator for plugin in plugins_called(program.graph, plugins)))


def _reasons(piece: Piece, reasons: Mapping[int, str]) -> dict[str, str]:
    """Operator → the reason of the first call of this operator."""
    first_reasons: dict[str, str] = {}
    for unit in piece.units:
        first_reasons.setdefault(target_name(unit.call.target), reasons[unit.call_number])
    return first_reasons


def _tensor_type(node: torch.fx.Node, symbols: Symbols) -> TensorType:
    value = node.meta["val"]
    shape = tuple(symbols.size_expression(size) for size in value.shape)
    return TensorType(str(value.dtype).removeprefix("torch."), shape)
