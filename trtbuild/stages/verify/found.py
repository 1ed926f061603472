"""The results of a verification for one partition, or for the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trtbuild.core.model.comparisons import Comparison, Status
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Point, coarsest, relative_to_tolerance
from trtbuild.stages.verify.comparing import Gap


@dataclass
class Found:
    """The worst result over all points. `precisions` are those of the outputs, and `tolerances` the largest allowed
    errors by precision. The worst output is the one with the largest error relative to its tolerance."""

    precisions: Sequence[Precision]
    tolerances: Mapping[Precision, float]
    worst: Gap = field(default_factory=lambda: Gap(-1.0))
    #: The worst error divided by its tolerance.
    relative_error: float = -1.0
    point: int | None = None
    output: int = 0
    #: The smallest point with a wrong result.
    smallest: int | None = None
    unchecked: str | None = None
    points: int = 0
    #: Outputs that had no value to compare at any point so far.
    unseen: set[int] | None = None
    #: The number of values that rounding decides, over all points.
    undecided: int = 0

    @property
    def tolerance(self) -> float:
        """The tolerance of the worst output; the largest one if no output was compared."""
        return self.tolerances[self.precision]

    @property
    def precision(self) -> Precision:
        return coarsest(self.precisions) if self.point is None else self.precisions[self.output]

    def see(self, point: int, gaps: Sequence[Gap], size: Callable[[int], int]) -> None:
        """Add the results of each output at a point."""
        self.points += 1
        self.undecided += sum(found.undecided for found in gaps)
        nothing = {output for output, found in enumerate(gaps) if not found.compared}
        self.unseen = nothing if self.unseen is None else self.unseen & nothing
        shares = [
            relative_to_tolerance(found.error, self.tolerances[precision])
            for found, precision in zip(gaps, self.precisions, strict=False)  # a failure is one gap for all outputs
        ]
        for output, (found, taken) in enumerate(zip(gaps, shares, strict=True)):
            if (taken, found.error) > (self.relative_error, self.worst.error):
                self.worst, self.relative_error, self.point, self.output = found, taken, point, output
        if any(taken > 1 for taken in shares) and (self.smallest is None or size(point) < size(self.smallest)):
            self.smallest = point

    @property
    def _left_out(self) -> str:
        values = "1 value" if self.undecided == 1 else f"{self.undecided:,} values"
        return f"rounding decides {values}, which were not compared" if self.undecided else ""

    def comparison(self, points: Sequence[Point]) -> Comparison:
        """The comparison for the report."""
        unchecked = self.unchecked
        if unchecked is None and self.unseen != set():
            unchecked = (
                f"output {min(self.unseen)} has no value to compare at any point: it is NaN, or rounding decides it"
                if self.unseen
                else "no point was run"
            )
        status: Status = "right" if unchecked is None else "unchecked"
        text = self._left_out if unchecked is None else unchecked
        if self.smallest is not None:
            status, text = "wrong", self.worst.text
        finite = self.point is not None and math.isfinite(self.worst.error)
        return Comparison(
            status=status,
            error=self.worst.error if finite else None,
            tolerance=self.tolerance,
            precision=self.precision,
            text=text,
            output=self.output,
            worst=points[self.point] if self.point is not None else None,
            points=self.points,
        )
