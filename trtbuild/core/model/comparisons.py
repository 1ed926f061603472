"""The results of comparisons between a model's partitions and a reference, as values.

A comparison runs at several points. A point is one size for each dynamic dimension, with random input values. A worker
process computes a `Report`. `trtbuild.core.model.verified` has the same results in the form of the document
``trtbuild.verify/1``, with the names of profiles and dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trtbuild.core.model.verification import Point, RoundedType, Runner
from trtbuild.core.values.codec import optional

#: The result of one comparison. ``unchecked``: the values could not be compared. `Compared.text` has the reason.
Status = Literal["right", "wrong", "unchecked"]


@dataclass(frozen=True)
class Operator:
    """One call of an operator. `module` is the path of the calling module, empty for the model itself.

    `nodes` are the ONNX nodes that the call became."""

    module: str
    operator: str
    nodes: Sequence[str] = ()


@dataclass(frozen=True)
class Place:
    """The place of a fault in a partition: one of the operators from `since` to `first`.

    `first` is the first operator whose value is known to be wrong. The values of `since` and of all operators between it
    and `first` could not be compared. Without such operators, `since` is equal to `first`. `text` describes the difference
    at `first`. If `text` is empty, the difference is the number `error`."""

    first: Operator
    since: Operator
    error: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class PartitionIdentity:
    """The name of a partition, and the SHA-256 of its ONNX model, or None if it has no ONNX model."""

    partition: str
    onnx: str | None


@dataclass(frozen=True, kw_only=True)
class PointError:
    """The error at one point. `point` is the index of the point in `Report.points`.

    `error` is that of the worst output at this point, as in `Compared`. `share` is `error` divided by the tolerance. A
    number that is not finite becomes None."""

    point: int
    error: float | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The worst result of a comparison over all points.

    `output` is the number of the output whose error is the largest relative to its tolerance. `error` is max|a-b| / max|b|
    of this output (b: the reference), or None if that is not a finite number. `precision` is the coarsest type from which
    this output is computed, and `tolerance` follows from it. The tolerance is larger for a model that amplifies errors
    (`trtbuild.stages.verify.rounding`, rule 3). `points` counts the compared points.
    """

    status: Status
    error: float | None
    tolerance: float
    precision: RoundedType
    text: str
    output: int
    #: The point with the worst result. Its type depends on the subclass.
    worst: object
    points: int
    #: The errors at all points that were compared. Records of earlier versions do not have them.
    by_point: Sequence[PointError] | None = optional()


@dataclass(frozen=True, kw_only=True)
class Comparison(Compared):
    """The comparison of the whole model. `worst` is the point with the worst result, or None if no point was compared."""

    worst: Point | None


@dataclass(frozen=True, kw_only=True)
class PartitionComparison(Comparison, PartitionIdentity):
    """The comparison of one partition. `place` is the place of its fault, or None if it is not known."""

    place: Place | None


@dataclass(frozen=True, kw_only=True)
class OutputError:
    """The error of one output of a quantized model against the float model.

    Errors are relative to the largest absolute value of the float model's output. `largest` is the largest error over all
    points. `mean` is the mean error over all values and points."""

    output: int
    largest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class FloatError:
    """The error of a quantized model against the float model, which is the same model without quantizers.

    `outputs` has the errors of the floating-point outputs that could be compared. `unknown` says which part of the error is
    not known. It continues a sentence that begins with "the error is", and is empty if the whole error is known."""

    outputs: Sequence[OutputError]
    unknown: str

    @property
    def largest(self) -> float | None:
        return max((entry.largest for entry in self.outputs), default=None)

    def explained(self, reason: str) -> FloatError:
        """Return the same error. If a part of it is unknown, `reason` is added to the text `unknown`."""
        return replace(self, unknown=self.unknown + reason) if self.unknown else self

    def why_rejected(self, limit: float, advice: str = "") -> str | None:
        """Return the reason why the error is, or may be, larger than `limit`; None if it is at most `limit`.

        `advice` says what to do if the error is unknown."""
        largest = self.largest
        if largest is not None and not largest <= limit:  # true for NaN, too
            return f"the error against the float model is {largest:.1e}, but --max-error allows {limit:.1e}"
        if self.unknown or largest is None:
            unknown = self.unknown or "unknown: no output could be compared"
            return f"the error against the float model is {unknown}" + (f"; {advice}" if advice else "")
        return None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The comparison of the partitions of a model for one toolchain, or of the engines of one target.

    `runner` ran the partitions, and `against` computed the reference. `tolerance` is that of the coarsest precision.
    `whole` compares the whole model, run by `runner`. `lowered` compares the program of the lower step, run by PyTorch.
    `worst_input` is the file with the inputs of the worst point, or None. `versions` maps each library that ran to its
    version. `float_error` is the error of the whole model, run by `runner`, against the float model. It is None for a model
    without quantizers.
    """

    runner: Runner
    against: str = "PyTorch"
    points: Sequence[Point]
    tolerance: float
    partitions: Sequence[PartitionComparison]
    whole: Comparison
    lowered: Comparison
    worst_input: str | None
    versions: Mapping[str, str]
    float_error: FloatError | None = optional()

    @property
    def status(self) -> Status:
        """The result of all comparisons.

        ``wrong`` if any is wrong, otherwise ``unchecked`` if a partition is unchecked or there is no partition, and
        otherwise ``right``."""
        if next(self.failures(), None) is not None:
            return "wrong"
        unchecked = not self.partitions or any(entry.status == "unchecked" for entry in self.partitions)
        return "unchecked" if unchecked else "right"

    def failures(self) -> Iterator[Comparison]:
        """Yield the wrong comparisons: of partitions, of the whole model, and of the lowered program in PyTorch."""
        comparisons = (*self.partitions, self.whole, self.lowered)
        yield from (comparison for comparison in comparisons if comparison.status == "wrong")
