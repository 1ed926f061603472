"""The job of a verification. It has plain values and digests, so any process with the store's blobs can run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.verification import Point, RoundedType
from trtbuild.core.values.value_ranges import ValueRange


@dataclass(frozen=True)
class FloatProgram:
    """The traced program of a model without its ``quantize:``."""

    #: The SHA-256 of the program, and of its canonical text.
    program: str
    graph: str
    #: The weights, in the order in which the program receives them.
    weights: tuple[Weight, ...]

    def blobs(self) -> Iterator[str]:
        yield self.program
        yield from (weight.sha256 for weight in self.weights)


@dataclass(frozen=True)
class VerifyJob:
    """The job: compare the partitions of a model, and the whole model, with the reference (PyTorch, or the ONNX models if
    `by_onnx`). Blobs are named by their SHA-256.

    A graph digest is the SHA-256 of the text of a partition's program. Equal partitions share it.
    """

    #: The traced program; empty if the model has no such program.
    program: str
    #: A list with the module and the operator of each call of the lowered program.
    modules: str
    #: The document of the partition step.
    partitions: str
    #: Graph digest → the program of the partition.
    programs: Mapping[str, str]
    #: Graph digest → the ONNX model.
    onnx: Mapping[str, str]
    #: Graph digest → a list with the call from which each ONNX node comes.
    origins: Mapping[str, str]
    #: The weights, in the order in which the traced program receives them.
    weights: tuple[Weight, ...]
    #: The name and dtype of each input.
    inputs: tuple[tuple[str, str], ...]
    #: The precision of an output → the largest allowed error.
    tolerances: Mapping[RoundedType, float]
    points: tuple[Point, ...] = ()
    #: For each of `points`, the shape of each input.
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    #: The name of an input → the known range of its values.
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    #: Whether the models in `onnx` are the reference. There are then no programs.
    by_onnx: bool = False
    #: The file to which the inputs of the worst point are written; None if they are not written.
    worst: str | None = None
    #: A file of inputs that replace the random inputs.
    replay: str | None = None
    #: The float model of a model with ``quantize:``. None: the float model is the program without quantizers.
    float_program: FloatProgram | None = None
    #: Whether the trace has rounded weights and stored them as floats. No operator of the programs shows this.
    has_rounded_weights: bool = False
    #: The operators from outside PyTorch that the programs call.
    operators: tuple[CustomOperator, ...] = ()
    #: The folders from which the modules of these operators are imported.
    roots: tuple[str, ...] = ()
    #: The initial values of the state inputs, which follow the declared inputs.
    first_state: tuple[Weight, ...] = ()

    def at(self, points: Sequence[Point], shapes: ShapePlan) -> VerifyJob:
        """Return the job with other points. `shapes` are those of the model's declared inputs."""
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
