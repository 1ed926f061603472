"""The job of a verification: plain values and digests, so that any process with access to the store can run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.verification import Point, RoundedType
from trtbuild.core.values.value_ranges import ValueRange


@dataclass(frozen=True)
class FloatProgram:
    """The traced program of a model without its ``quantize:``, and its weights by slot (the number of
    a weight in the traced program).

    `program` and `graph` are the SHA-256 of the program and of its canonical text."""

    program: str
    graph: str
    weights: tuple[Weight, ...]

    def blobs(self) -> Iterator[str]:
        """Yield the SHA-256 of every blob that a comparison reads."""
        yield self.program
        yield from (weight.sha256 for weight in self.weights)


@dataclass(frozen=True)
class VerifyJob:
    """Compare the partitions of a model with PyTorch. Programs, ONNX models and weights are named by the SHA-256 of
    their blobs.

    `program` is the traced program (empty if the model has no such program). `modules` lists the module and the operator
    of each call of the lowered program. `partitions` is the partition step's document. The keys of `programs`,
    `onnx` and `origins` are graph digests. A blob in `origins` names the call that each ONNX node comes from. `shapes` has
    each input's shape at each of `points`. `tolerances` maps the precision of an output to the largest allowed error.
    With `by_onnx`, the models in `onnx` are the reference, and there are no programs.
    """

    program: str
    modules: str
    partitions: str
    programs: Mapping[str, str]
    onnx: Mapping[str, str]
    origins: Mapping[str, str]
    weights: tuple[Weight, ...]
    inputs: tuple[tuple[str, str], ...]
    tolerances: Mapping[RoundedType, float]
    points: tuple[Point, ...] = ()
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    #: The ranges of input values, by input name, as far as known.
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    by_onnx: bool = False
    #: The file to which the inputs of the worst point are written; None if they are not written.
    worst: str | None = None
    #: A file of inputs that replace the random inputs.
    replay: str | None = None
    #: The float model of a model with ``quantize:``. None: the float model is the program without quantizers.
    float_program: FloatProgram | None = None
    #: Whether the trace rounded weights and stored them as floats. No operator of the programs shows this.
    has_rounded_weights: bool = False
    #: The operators from outside PyTorch that the programs call.
    operators: tuple[CustomOperator, ...] = ()
    #: The folders from which the modules of these operators are imported.
    roots: tuple[str, ...] = ()
    #: The initial values of the state inputs, which follow the declared inputs. Empty for a model without state.
    first_state: tuple[Weight, ...] = ()

    def at(self, points: Sequence[Point], shapes: ShapePlan) -> VerifyJob:
        """The job with other points. `shapes` are those of the model's declared inputs."""
        state_shapes = tuple(weight.shape for weight in self.first_state)
        input_shapes = tuple((*shapes.input_shapes(point.sizes), *state_shapes) for point in points)
        return replace(self, points=tuple(points), shapes=input_shapes)

    def blobs(self) -> Iterator[str]:
        """Yield the SHA-256 of every blob that the comparison reads."""
        yield from filter(None, (self.program, self.modules, self.partitions))
        for group in (self.programs, self.onnx, self.origins):
            yield from group.values()
        yield from (weight.sha256 for weight in (*self.weights, *self.first_state))
        if self.float_program is not None:
            yield from self.float_program.blobs()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "points": [point.to_json() for point in self.points]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VerifyJob:
        """The inverse of `to_json`, after JSON encoding. Raises KeyError, TypeError, ValueError or AttributeError on
        anything else."""
        plain = {name: data[name] for name in cls.__dataclass_fields__}
        plain["weights"] = _weights(data["weights"])
        plain["first_state"] = _weights(data["first_state"])
        plain["inputs"] = tuple((name, dtype) for name, dtype in data["inputs"])
        plain["ranges"] = {name: (ends[0], ends[1]) for name, ends in data["ranges"].items()}
        plain["points"] = tuple(Point.from_json(point) for point in data["points"])
        plain["shapes"] = tuple(tuple(tuple(shape) for shape in point) for point in data["shapes"])
        if data["float_program"] is not None:
            fields = data["float_program"]
            plain["float_program"] = FloatProgram(fields["program"], fields["graph"], _weights(fields["weights"]))
        plain["operators"] = tuple(CustomOperator(**entry) for entry in data["operators"])
        plain["roots"] = tuple(data["roots"])
        return cls(**plain)


def _weights(data: Sequence[Mapping[str, Any]]) -> tuple[Weight, ...]:
    return tuple(Weight(entry["dtype"], tuple(entry["shape"]), entry["sha256"]) for entry in data)
