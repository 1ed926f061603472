"""Collect the results of the comparisons of one partition, or of the whole model, over all points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trtbuild.core.model.comparisons import Comparison, PointError, Status
from trtbuild.core.model.verification import Point, RoundedType, coarsest_precision, relative_to_tolerance
from trtbuild.stages.verify.comparing import Deviation


@dataclass
class Outcome:
    """The worst result of one partition, or of the whole model, over all points (`Point`: input sizes and a seed).

    `precisions` has the precision of each output. The worst output has the largest error relative to its tolerance.
    """

    precisions: Sequence[RoundedType]
    #: Precision → the largest allowed error.
    tolerances: Mapping[RoundedType, float]
    worst: Deviation = field(default_factory=lambda: Deviation(-1.0))
    #: The worst error divided by its tolerance.
    relative_error: float = -1.0
    #: The index of the point, and the number of the output, with the worst error.
    point: int | None = None
    output: int = 0
    #: The index of the point with the smallest inputs, among the points with a wrong result.
    smallest_wrong: int | None = None
    #: The reason why the partition cannot run here; None if it can run.
    unchecked: str | None = None
    #: The error at each point at which results were added.
    by_point: list[PointError] = field(default_factory=list)
    #: The outputs that had no value to compare at any point so far; None before the first point.
    never_compared: set[int] | None = None
    #: The number of values that rounding decides, over all points.
    left_out_count: int = 0

    @property
    def tolerance(self) -> float:
        """The tolerance of the worst output, or `worst.allowed_error` if that is larger.

        If no point was run, it is the largest tolerance of the outputs."""
        return max(self.tolerances[self.precision], self.worst.allowed_error)

    @property
    def precision(self) -> RoundedType:
        """The precision of the worst output. If no point was run, it is the coarsest precision of the outputs."""
        return coarsest_precision(self.precisions) if self.point is None else self.precisions[self.output]

    def add(self, point: int, deviations: Sequence[Deviation], size: Callable[[int], int]) -> None:
        """Add the result of each output at a point. `size` returns the number of values in the inputs at a point."""
        self.left_out_count += sum(deviation.left_out_count for deviation in deviations)
        not_compared = {output for output, deviation in enumerate(deviations) if not deviation.compared}
        self.never_compared = not_compared if self.never_compared is None else self.never_compared & not_compared
        # if the partition failed, there is one deviation for all outputs, so the lengths may differ
        relative_errors = [
            relative_to_tolerance(deviation.error, self.tolerances[precision])
            for deviation, precision in zip(deviations, self.precisions, strict=False)
        ]
        for output, (deviation, relative) in enumerate(zip(deviations, relative_errors, strict=True)):
            if (relative, deviation.error) > (self.relative_error, self.worst.error):
                self.worst, self.relative_error, self.point, self.output = deviation, relative, point, output
        share, error = max(
            ((relative, deviation.error) for relative, deviation in zip(relative_errors, deviations, strict=True)),
            default=(0.0, 0.0),
        )
        self.by_point.append(PointError(point=point, error=_finite(error), share=_finite(share)))
        is_wrong = any(
            relative > 1 and not deviation.error <= deviation.allowed_error
            for deviation, relative in zip(deviations, relative_errors, strict=True)
        )
        if is_wrong and (self.smallest_wrong is None or size(point) < size(self.smallest_wrong)):
            self.smallest_wrong = point

    @property
    def _left_out_text(self) -> str:
        values = "1 value" if self.left_out_count == 1 else f"{self.left_out_count:,} values"
        return f"rounding decides {values}, which were not compared" if self.left_out_count else ""

    def comparison(self, points: Sequence[Point]) -> Comparison:
        unchecked = self.unchecked
        if unchecked is None and self.never_compared != set():
            unchecked = (
                f"output {min(self.never_compared)} has no value to compare at any point: it is NaN, or rounding decides it"
                if self.never_compared
                else "no point was run"
            )
        status: Status = "right" if unchecked is None else "unchecked"
        text = self._left_out_text if unchecked is None else unchecked
        if self.smallest_wrong is not None:
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
            points=len(self.by_point),
            by_point=tuple(self.by_point),
        )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) and number >= 0 else None
