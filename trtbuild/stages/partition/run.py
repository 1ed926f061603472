"""The partition step: split the graph, ask the parser about each piece, and split again with the rejected calls in PyTorch.

Rules
1. The labels (`labels`) determine the candidates: pieces of the graph that may become engines. Each candidate is converted
   to ONNX and passed to TensorRT's parser. Rejected units (operator calls) stay in PyTorch, and the graph is split again.
2. If a size is rejected, the operators that use it are rejected. If a refusal names no node of the candidate, the whole
   candidate stays in PyTorch.
3. `min_block_size` moves small pieces of a split model to PyTorch. It moves neither a whole region of `granularity`, nor a
   piece of a model whose units all go to TensorRT.
4. With `require_full_compilation`, a PyTorch partition is an error that lists the operators and reasons, unless it has only
   casts of ``truncate_double``. Small pieces are then also converted and parsed, so that the list is complete.
5. Candidates with the same canonical text are converted and parsed once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.model.plugins import Plugin
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.partition.partitioning import divide
from trtbuild.errors import ConversionRefused
from trtbuild.stages.partition.document import BuiltPiece, PartitionResult, make_result
from trtbuild.stages.partition.empty_tensors import find_calls_on_empty_tensors
from trtbuild.stages.partition.labels import Label, check_operators_exist, find_border_casts, label_units
from trtbuild.stages.partition.pieces import Piece, make_pieces
from trtbuild.stages.partition.regions import REST_REGION, check_patterns, module_path
from trtbuild.stages.partition.split import PieceProgram, build_program
from trtbuild.stages.partition.units import Unit, affected_calls, call_numbers_by_node, find_units
from trtbuild.stages.program.consistency import refuse_inconsistency
from trtbuild.stages.program.fixed_symbols import suppress_new_guards
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.plugins import check_plugins, map_operators_to_plugins
from trtbuild.stages.program.sizes import points_of
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import program_text, target_name

#: Number of a call in a program → the reason of the refusal.
Reasons = Mapping[int, str]

#: In the parser's reasons: the name of a node before its operator, and the code for an operator that it does not have.
_NODE_NAME = re.compile(r"\bn[0-9]+: (?=[A-Z])")
_UNSUPPORTED = re.compile(r"(\w+): UNSUPPORTED_NODE: false")

_MAX_LISTED_LINES = 20


@dataclass(frozen=True)
class Refusal:
    """The reason why TensorRT rejects a candidate, and the reason of each rejected call. `nodes` may be empty."""

    text: str
    nodes: Reasons


class CandidateValidator(Protocol):
    """Converts a candidate and asks TensorRT's parser about it."""

    def untranslatable_calls(self, program: Program) -> Reasons:
        """The calls for which the ONNX exporter has no correct translation."""

    def refusal(self, program: Program, text: str) -> Refusal | None:
        """The refusal of a candidate; None if it can be converted and parsed. `text` is the program's canonical text."""


def partition(
    program: Program,
    settings: PartitionSettings,
    validator: CandidateValidator,
    points: Sequence[Sequence[int]] = (),
    plugins: Sequence[Plugin] = (),
) -> PartitionResult:
    """Split a lowered program. The sizes in the pieces are also checked at each of `points` (values of the symbols).

    Raises ConversionRefused under rule 4, and InconsistentShapes if a piece has other sizes than the whole program. Raises
    SourceError for a constant output, for a pattern of `granularity` that matches nothing, and for wrong entries of
    `torch_executed_ops` or `plugins`. Raises the errors of `validator`.
    """
    with suppress_new_guards():
        return _Partitioner(program, settings, validator, points, plugins).run()


class _Partitioner:
    def __init__(
        self,
        program: Program,
        settings: PartitionSettings,
        validator: CandidateValidator,
        points: Sequence[Sequence[int]],
        plugins: Sequence[Plugin],
    ) -> None:
        self._program = program
        self._plugins = plugins
        self._points = points_of(program, points)
        self._settings = settings
        self._validator = validator
        self._symbols = Symbols(program)
        self._units = find_units(program)
        #: `Piece.identity` → the piece's program, and its canonical text.
        self._programs: dict[object, tuple[PieceProgram, str]] = {}
        #: Canonical text → the validator's answer (rule 5).
        self._refusals: dict[str, Refusal | None] = {}

    def run(self) -> PartitionResult:
        settings = self._settings
        if settings.divides_by_module:
            check_patterns(self._units, settings.granularity)
        check_operators_exist(settings.torch_executed_ops)
        check_plugins(self._program.graph, self._plugins)
        plugins_by_operator = map_operators_to_plugins(self._plugins)
        refused = _untranslatable(self._program, self._units, self._validator)
        refused = find_calls_on_empty_tensors(self._units, self._points) | refused
        if settings.truncate_double:
            refused |= find_border_casts(self._program, self._units)
        while True:
            labels = label_units(self._units, settings, refused, plugins_by_operator)
            final_labels, groups = group_units(self._units, labels, settings)
            pieces = make_pieces(self._program, groups, self._symbols)
            newly_refused: dict[int, str] = {}
            for piece in pieces:
                if final_labels[piece.units[0].call_number].region is not None:
                    newly_refused |= self._refused_calls(piece)
            if not newly_refused:
                break
            refused |= newly_refused
        if settings.require_full_compilation:
            refuse_torch_units(self._units, labels)
        built_pieces = [
            BuiltPiece(piece, final_labels[piece.units[0].call_number].region, *self._build(piece)) for piece in pieces
        ]
        reasons = {number: label.reason for number, label in final_labels.items()}
        return make_result(self._program, self._symbols, built_pieces, reasons, self._plugins)

    def _build(self, piece: Piece) -> tuple[PieceProgram, str]:
        """The piece's program and its text. An unchanged piece is not built again after another split."""
        if piece.identity not in self._programs:
            piece_program = build_program(self._program, piece, self._symbols)
            refuse_inconsistency(piece_program.program, self._points, "partitioning")
            self._programs[piece.identity] = piece_program, program_text(piece_program.program)
        return self._programs[piece.identity]

    def _refused_calls(self, piece: Piece) -> dict[int, str]:
        """Number of a refused call in the whole graph → reason."""
        piece_program, text = self._build(piece)
        if text not in self._refusals:
            self._refusals[text] = self._validator.refusal(piece_program.program, text)
        refusal = self._refusals[text]
        return {} if refusal is None else units_of_refusal(piece, piece_program, refusal)


def _untranslatable(program: Program, units: Sequence[Unit], validator: CandidateValidator) -> dict[int, str]:
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    call_numbers = call_numbers_by_node(units)
    return {
        affected: reason
        for number, reason in validator.untranslatable_calls(program).items()
        for affected in sorted(affected_calls(calls[number], call_numbers))
    }


def units_of_refusal(piece: Piece, piece_program: PieceProgram, refusal: Refusal) -> dict[int, str]:
    """Number of a rejected call in the whole graph → reason (rule 2)."""
    unit_numbers = call_numbers_by_node(piece.units)
    calls = [node for node in piece_program.program.graph.nodes if node.op == "call_function"]
    call_numbers = {
        copy: unit_numbers[origin]
        for copy, origin in zip(calls, piece_program.origins, strict=True)
        if origin and origin in unit_numbers
    }
    named_units = {
        affected: reason
        for number, reason in refusal.nodes.items()
        for affected in sorted(affected_calls(calls[number], call_numbers))
    }
    return named_units or {unit.call_number: refusal.text for unit in piece.units}


def group_units(
    units: Sequence[Unit], initial_labels: Sequence[Label], settings: PartitionSettings
) -> tuple[dict[int, Label], list[list[Unit]]]:
    """Apply rule 3 to the `initial_labels` of `units`. Returns call number → final label, and the groups of units."""
    labels = list(initial_labels)
    needs = [unit.needs for unit in units]
    min_unit_count = 1 if settings.require_full_compilation else settings.min_block_size
    while True:
        is_model_split = any(label.splits_model for label in labels)
        groups = divide(needs, [label.region for label in labels])
        regions = [labels[group[0]].region for group in groups]
        group_counts = Counter(regions)
        small_positions = [
            position
            for group, region in zip(groups, regions, strict=True)
            if region is not None
            and is_model_split
            and len(group) < min_unit_count
            and (region == REST_REGION or group_counts[region] > 1)
            for position in group
        ]
        if not small_positions:
            final_labels = {unit.call_number: label for unit, label in zip(units, labels, strict=True)}
            return final_labels, [[units[position] for position in group] for group in groups]
        for position in small_positions:
            labels[position] = Label(None, f"in a piece smaller than min_block_size {min_unit_count}")


def refuse_torch_units(units: Sequence[Unit], labels: Sequence[Label]) -> None:
    """Apply rule 4. The casts of ``truncate_double`` do not count."""
    lines = []
    for unit, label in zip(units, labels, strict=True):
        if label.splits_model:
            place = module_path(unit.call) or "the root module"
            lines.append(f"{target_name(unit.call.target)} in {place}: {_without_parser_codes(label.reason)}")
    lines = list(dict.fromkeys(lines))
    if lines:
        rest = f"\n    and {len(lines) - _MAX_LISTED_LINES} more" if len(lines) > _MAX_LISTED_LINES else ""
        listed = "\n    ".join(lines[:_MAX_LISTED_LINES])
        raise ConversionRefused(
            f"require_full_compilation is set, but TensorRT cannot take the whole model:\n    {listed}{rest}",
            hint="set require_full_compilation: false to keep these operators in PyTorch, or write the model without them",
        )


def _without_parser_codes(reason: str) -> str:
    """A reason without the parser's node names and codes, such as ``n4: Det: UNSUPPORTED_NODE: false``."""
    return _UNSUPPORTED.sub(r"TensorRT's parser does not take ONNX's \1", _NODE_NAME.sub("", reason))
