"""The partition step: cut, ask, cut again.

Rules
1. Candidates are cut from the labels (`labels`), then each distinct TensorRT candidate is converted and its ONNX is
   handed to the toolchain's own parser. What either refuses becomes Torch's, and everything is cut again.
2. A refusal that names no node of the candidate makes the whole candidate Torch's: nothing is guessed.
3. `min_block_size` joins small pieces of a split model to Torch. A model with no Torch unit is not split, and a region
   of `granularity` that is whole is an engine whatever its size.
4. With `require_full_compilation`, any Torch partition is an error that lists the operators and why.
5. Equal structures are converted and parsed once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.partitioning import cut
from trtbuild.core.partitions import Partition, Partitions, TensorType
from trtbuild.core.spec import PartitionSettings
from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.partition.labels import TORCH, Label, label_units, module_path
from trtbuild.stages.partition.split import Built, Piece, build, pieces_of
from trtbuild.stages.partition.units import Unit, units_of
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import program_text, target_name

#: Call number in the candidate's program → why it is refused. Empty: refused as a whole (see `Refusal.text`).
Nodes = Mapping[int, str]


@dataclass(frozen=True)
class Refusal:
    """Why a candidate cannot be TensorRT's, by call number where that is known."""

    text: str
    nodes: Nodes


class Judge(Protocol):
    """Converts a candidate and asks the toolchain's parser about it."""

    def untranslatable(self, program: Program) -> Nodes:
        """Calls that the ONNX exporter has no translation for."""

    def refusal(self, program: Program, text: str) -> Refusal | None:
        """None when the candidate converts and parses. `text` is its canonical text."""


@dataclass(frozen=True)
class Partitioned:
    """The document, and each distinct partition program by the SHA-256 of its text."""

    document: Partitions
    programs: Mapping[str, Program]


def partition(
    program: Program,
    settings: PartitionSettings,
    judge: Judge,
    implementation: Callable[[str], str] | None = None,
) -> Partitioned:
    """Cut a lowered program. Raises ConversionRefused under rule 4."""
    symbols = Symbols(program)
    units = units_of(program)
    untranslatable = judge.untranslatable(program)
    refused: dict[int, str] = {}
    judged: dict[str, Refusal | None] = {}
    while True:
        labels, groups = _cut(units, settings, label_units(units, settings, untranslatable, refused, symbols))
        pieces = pieces_of(program, groups, symbols)
        kinds = [labels[piece.units[0].index].region for piece in pieces]
        builds = [build(program, piece, symbols) for piece in pieces]
        texts = [program_text(built.program, implementation) for built in builds]
        found = False
        for piece, region, built, text in zip(pieces, kinds, builds, texts, strict=True):
            if region == TORCH:
                continue
            if text not in judged:
                judged[text] = judge.refusal(built.program, text)
            refusal = judged[text]
            if refusal is not None:
                found = True
                refused.update(_refused_units(piece, built, refusal))
        if not found:
            break
    if settings.require_full_compilation:
        _refuse_torch(pieces, kinds, labels)
    return _document(program, symbols, pieces, kinds, labels, builds, texts)


def _cut(
    units: Sequence[Unit], settings: PartitionSettings, initial: Sequence[Label]
) -> tuple[dict[int, Label], list[list[Unit]]]:
    """The labels (by call number) after `min_block_size`, and the groups of units."""
    labels = list(initial)
    while True:
        parts = cut([unit.needs for unit in units], [label.region for label in labels])
        split = any(label.region == TORCH for label in labels)
        pieces_of_region = Counter(labels[part[0]].region for part in parts)
        small = [
            part
            for part in parts
            if split
            and labels[part[0]].region != TORCH
            and len(part) < settings.min_block_size
            and (labels[part[0]].region == "" or pieces_of_region[labels[part[0]].region] > 1)
        ]
        if not small:
            by_call = {unit.index: label for unit, label in zip(units, labels, strict=True)}
            return by_call, [[units[position] for position in part] for part in parts]
        for part in small:
            for position in part:
                labels[position] = Label(TORCH, f"in a piece smaller than min_block_size {settings.min_block_size}")


def _refused_units(piece: Piece, built: Built, refusal: Refusal) -> dict[int, str]:
    """Call numbers of the whole graph → reason."""
    owner = {node: unit.index for unit in piece.units for node in unit.nodes}
    named = {}
    for number, reason in refusal.nodes.items():
        origin = built.origins[number]
        if origin is not None and origin in owner:
            named[owner[origin]] = reason
    return named or {unit.index: refusal.text for unit in piece.units}


def _reasons(piece: Piece, labels: Mapping[int, Label]) -> dict[str, str]:
    return {target_name(unit.call.target): labels[unit.index].reason for unit in piece.units}


def _refuse_torch(pieces: Sequence[Piece], kinds: Sequence[str], labels: Mapping[int, Label]) -> None:
    lines = []
    for piece, region in zip(pieces, kinds, strict=True):
        if region == TORCH:
            for unit in piece.units:
                place = module_path(unit) or "the root module"
                lines.append(f"{target_name(unit.call.target)} in {place}: {labels[unit.index].reason}")
    if lines:
        shown = "\n    ".join(list(dict.fromkeys(lines))[:20])
        raise ConversionRefused(
            f"require_full_compilation is set, but TensorRT cannot take the whole model:\n    {shown}",
            hint="set partition.require_full_compilation: false to keep these operators in PyTorch",
        )


def _document(
    program: Program,
    symbols: Symbols,
    pieces: Sequence[Piece],
    kinds: Sequence[str],
    labels: Mapping[int, Label],
    builds: Sequence[Built],
    texts: Sequence[str],
) -> Partitioned:
    numbers = {}
    for number, node in enumerate(node for node in program.graph.nodes if node.op == "call_function"):
        numbers[node] = number
    sources = {node: f"weight:{k}" for k, node in enumerate(program.weight_nodes)}
    slots = {node: k for k, node in enumerate(program.weight_nodes)}
    sources |= {node: f"input:{k}" for k, node in enumerate(program.input_nodes)}
    partitions: list[Partition] = []
    programs: dict[str, Program] = {}
    names = _names(kinds)
    for name, region, piece, built, text in zip(names, kinds, pieces, builds, texts, strict=True):
        digest = hashlib.sha256(text.encode()).hexdigest()
        programs.setdefault(digest, built.program)
        partitions.append(
            Partition(
                name=name,
                kind="torch" if region == TORCH else "tensorrt",
                graph=digest,
                weights=tuple(slots[node] for node in piece.weights),
                inputs=tuple((sources[node], _type(node, symbols)) for node in piece.inputs),
                outputs=tuple(_type(node, symbols) for node in piece.outputs),
                calls=tuple(-1 if node is None else numbers[node] for node in built.origins),
                reasons=_reasons(piece, labels) if region == TORCH else {},
            )
        )
        sources |= {node: f"{name}:{k}" for k, node in enumerate(piece.outputs)}
    outputs = []
    for node in program.output_nodes:
        if node not in sources:
            raise SourceError("an output of the model is a constant", code="constant-output")
        outputs.append(sources[node])
    return Partitioned(Partitions(tuple(partitions), tuple(outputs)), programs)


def _names(kinds: Sequence[str]) -> list[str]:
    """A region's path, or ``p<k>``; one partition alone is ``model``. A region in pieces gets a number at its end."""
    if len(kinds) == 1 and kinds[0] in ("", TORCH):
        return ["model"]
    count = Counter(kinds)
    seen: Counter[str] = Counter()
    names = []
    for position, region in enumerate(kinds):
        if region in ("", TORCH):
            names.append(f"p{position}")
            continue
        names.append(region if count[region] == 1 else f"{region}#{seen[region]}")
        seen[region] += 1
    return names


def _type(node: object, symbols: Symbols) -> TensorType:
    value = node.meta["val"]  # type: ignore[attr-defined]
    shape = tuple(symbols.expression(size) for size in value.shape)
    return TensorType(str(value.dtype).removeprefix("torch."), shape)
