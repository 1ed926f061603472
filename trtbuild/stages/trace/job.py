"""The job of one trace. This module does not import torch, because plans create jobs without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtbuild.core.model.shapes import ShapePlan, Ties, kept_symbols
from trtbuild.core.model.spec import Input, Source

#: The name, dtype (without ``torch.``) and shape of each tensor of a weights file.
WeightTypes = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class TraceJob:
    """A model to trace.

    `points` are sizes of the symbols (in the order of ``shapes.symbols``) at which the program and the model must
    compute the same results (`proof_points`). `apart` are pairs of symbols that have the same range, but different min, opt
    or max in some profile. The symbols of such a pair are not `alike`. `weights` describes the tensors of the
    ``weights:`` file; None without a file. `origins` is for messages: it maps a dotted path in the manifest's model
    (``inputs.image``, ``dims.height``, ``source``) to ``file:line``.
    """

    source: Source
    inputs: tuple[Input, ...]
    shapes: ShapePlan
    points: tuple[tuple[int, ...], ...] = ()
    weights: WeightTypes | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    apart: tuple[tuple[int, int], ...] = ()
    #: The digest of the quantizers that a calibration has found; None without a calibration.
    quantizers: str | None = None
    #: Patterns that match the names of the buffers that a call reads and writes.
    state: tuple[str, ...] = ()

    def alike(self, one: int, other: int) -> bool:
        """Whether two symbols have the same min, opt and max in every profile, and the same ``multiple_of``."""
        first, second = (replace(self.shapes.symbols[number], name="") for number in (one, other))
        return first == second and tuple(sorted((one, other))) not in self.apart

    def tied(self, ties: Ties) -> TraceJob:
        """The job in which the two symbols of each pair in `ties` are one symbol. Its `apart` is empty, because the numbers
        in `apart` are those of the declared symbols."""
        kept_numbers = dict.fromkeys(kept_symbols(len(self.shapes.symbols), ties))
        points = tuple(dict.fromkeys(tuple(point[number] for number in kept_numbers) for point in self.points))
        return replace(self, shapes=self.shapes.merge_ties(ties), points=points, apart=())

    def place(self, *paths: str) -> dict[str, Any]:
        """The arguments ``file`` and ``line`` of an error: the origin of the first of `paths` that has one, or that of the
        source. Empty if neither is known."""
        for path in (*paths, "source"):
            file, _, line = self.origins.get(path, "").rpartition(":")
            if file and line.isdigit():
                return {"file": file, "line": int(line)}
        return {}
