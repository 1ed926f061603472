"""The partition step: cut the graph, ask the parser, cut again.

Rules
1. The labels (`labels`) determine the candidates. Each distinct TensorRT candidate is converted, and its ONNX model is
   passed to the toolchain's own parser. Rejected units stay in PyTorch, and the graph is cut again.
2. If a size is rejected, the operators that use it are rejected. If a refusal names no node of the candidate, the whole
   candidate stays in PyTorch.
3. `min_block_size` moves small pieces of a split model to PyTorch. A model whose units all go to TensorRT is not split,
   and a whole region of `granularity` is an engine, even if it is small.
4. With `require_full_compilation`, a PyTorch partition is an error that lists the operators and reasons. Small pieces
   are then also converted and parsed, so that the list is complete.
5. Equal structures are converted and parsed once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.partition.partitioning import divide
from trtbuild.errors import ConversionRefused
from trtbuild.stages.partition.document import Candidate, Partitioned, document
from trtbuild.stages.partition.empty_tensors import computed_from_empty
from trtbuild.stages.partition.labels import Label, border_casts, check_operators_exist, label_units
from trtbuild.stages.partition.pieces import Piece, pieces_of
from trtbuild.stages.partition.regions import REST, check_patterns, module_path
from trtbuild.stages.partition.split import Built, build
from trtbuild.stages.partition.units import Unit, owners, units_of, units_using
from trtbuild.stages.program.fixed_symbols import fixed_symbols
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.guard import refuse_inconsistency
from trtbuild.stages.program.sizes import points_of
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import program_text, target_name

#: Call number in a program → the reason of the refusal.
Nodes = Mapping[int, str]

_NODE = re.compile(r"\bn[0-9]+: (?=[A-Z])")
_UNSUPPORTED = re.compile(r"(\w+): UNSUPPORTED_NODE: false")

#: How many operators a message lists.
_LISTED = 20


@dataclass(frozen=True)
class Refusal:
    """The reason why TensorRT rejects a candidate: for the whole candidate, and by call number if that is known."""

    text: str
    nodes: Nodes


class CandidateValidator(Protocol):
    """Converts a candidate and asks the toolchain's parser about it."""

    def untranslatable(self, program: Program) -> Nodes:
        """The calls for which the ONNX exporter has no translation."""

    def refusal(self, program: Program, text: str) -> Refusal | None:
        """The refusal of a candidate; None if it converts and parses. `text` is its canonical text."""


def partition(
    program: Program, settings: PartitionSettings, validator: CandidateValidator, points: Sequence[Sequence[int]] = ()
) -> Partitioned:
    """Cut a lowered program. `points` are further sizes of the symbols at which sizes are compared.

    Raises ConversionRefused under rule 4, SourceError for a pattern of `granularity` that matches nothing,
    InconsistentShapes if a piece has other sizes than the whole program, and the errors of `validator`.
    """
    with fixed_symbols():
        return _Partitioner(program, settings, validator, points).run()


class _Partitioner:
    def __init__(
        self,
        program: Program,
        settings: PartitionSettings,
        validator: CandidateValidator,
        points: Sequence[Sequence[int]],
    ) -> None:
        self._program = program
        self._points = points_of(program, points)
        self._settings = settings
        self._validator = validator
        self._symbols = Symbols(program)
        self._units = units_of(program)
        self._built: dict[object, tuple[Built, str]] = {}
        self._refusals: dict[str, Refusal | None] = {}

    def run(self) -> Partitioned:
        settings = self._settings
        if settings.divides_by_module:
            check_patterns(self._units, settings.granularity)
        check_operators_exist(settings.torch_executed_ops)
        refused = _untranslatable(self._program, self._units, self._validator)
        refused = computed_from_empty(self._units, self._points) | refused
        if settings.truncate_double:
            refused |= border_casts(self._program, self._units)
        while True:
            labels = label_units(self._units, settings, refused)
            final_labels, groups = cut_units(self._units, labels, settings)
            pieces = pieces_of(self._program, groups, self._symbols)
            newly_refused: dict[int, str] = {}
            for piece in pieces:
                if final_labels[piece.units[0].index].region is not None:
                    newly_refused |= self._refused(piece)
            if not newly_refused:
                break
            refused |= newly_refused
        if settings.require_full_compilation:
            refuse_torch(self._units, labels)
        candidates = [
            Candidate(piece, final_labels[piece.units[0].index].region, *self._build(piece)) for piece in pieces
        ]
        reasons = {number: label.reason for number, label in final_labels.items()}
        return document(self._program, self._symbols, candidates, reasons)

    def _build(self, piece: Piece) -> tuple[Built, str]:
        """The piece's program and its text. They are computed once, even if the graph is cut again."""
        if piece.identity not in self._built:
            built = build(self._program, piece, self._symbols)
            refuse_inconsistency(built.program, self._points, "the cut")
            self._built[piece.identity] = built, program_text(built.program)
        return self._built[piece.identity]

    def _refused(self, piece: Piece) -> dict[int, str]:
        """Return the refused calls of a candidate: call number of the whole graph → reason."""
        built, text = self._build(piece)
        if text not in self._refusals:
            self._refusals[text] = self._validator.refusal(built.program, text)
        refusal = self._refusals[text]
        return {} if refusal is None else refused_units(piece, built, refusal)


def _untranslatable(program: Program, units: Sequence[Unit], validator: CandidateValidator) -> dict[int, str]:
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    owner = owners(units)
    return {
        user: reason
        for number, reason in validator.untranslatable(program).items()
        for user in sorted(units_using(calls[number], owner))
    }


def refused_units(piece: Piece, built: Built, refusal: Refusal) -> dict[int, str]:
    """Return the rejected units: call number of the whole graph → reason. They are the units that the refusal names, or
    all units of the piece (rule 2)."""
    unit_numbers = owners(piece.units)
    calls = [node for node in built.program.graph.nodes if node.op == "call_function"]
    owner = {
        copy: unit_numbers[origin]
        for copy, origin in zip(calls, built.origins, strict=True)
        if origin and origin in unit_numbers
    }
    named_units = {
        user: reason for number, reason in refusal.nodes.items() for user in sorted(units_using(calls[number], owner))
    }
    return named_units or {unit.index: refusal.text for unit in piece.units}


def cut_units(
    units: Sequence[Unit], initial: Sequence[Label], settings: PartitionSettings
) -> tuple[dict[int, Label], list[list[Unit]]]:
    """Apply `min_block_size` (rule 3). Returns the final labels by call number, and the groups of units."""
    labels = list(initial)
    needs = [unit.needs for unit in units]
    min_units = 1 if settings.require_full_compilation else settings.min_block_size
    while True:
        is_split = any(label.is_split for label in labels)
        parts = divide(needs, [label.region for label in labels])
        regions = [labels[part[0]].region for part in parts]
        count = Counter(regions)
        small = [
            position
            for part, region in zip(parts, regions, strict=True)
            if region is not None and is_split and len(part) < min_units and (region == REST or count[region] > 1)
            for position in part
        ]
        if not small:
            by_call = {unit.index: label for unit, label in zip(units, labels, strict=True)}
            return by_call, [[units[position] for position in part] for part in parts]
        for position in small:
            labels[position] = Label(None, f"in a piece smaller than min_block_size {min_units}")


def refuse_torch(units: Sequence[Unit], labels: Sequence[Label]) -> None:
    """Raise ConversionRefused if any unit stays in PyTorch (rule 4), other than the casts of ``truncate_double``."""
    lines = []
    for unit, label in zip(units, labels, strict=True):
        if label.is_split:
            place = module_path(unit.call) or "the root module"
            lines.append(f"{target_name(unit.call.target)} in {place}: {_plain(label.reason)}")
    lines = list(dict.fromkeys(lines))
    if lines:
        rest = f"\n    and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
        listed = "\n    ".join(lines[:_LISTED])
        raise ConversionRefused(
            f"require_full_compilation is set, but TensorRT cannot take the whole model:\n    {listed}{rest}",
            hint="set require_full_compilation: false to keep these operators in PyTorch, or write the model without them",
        )


def _plain(reason: str) -> str:
    """A reason without the parser's names and codes, such as ``n4: Det: UNSUPPORTED_NODE: false``."""
    return _UNSUPPORTED.sub(r"TensorRT's parser does not take ONNX's \1", _NODE.sub("", reason))
