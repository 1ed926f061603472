"""The reference of a comparison: a model's programs in PyTorch. For an ONNX source, its partitions in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from trtbuild.core.model.verification import Point, RoundedType, coarsest_precision
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.core.values.value_ranges import is_index_error
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.unquantized import Unquantized, has_quantizers, without_quantizers
from trtbuild.stages.verify import blame, precisions
from trtbuild.stages.verify import inputs as verification_inputs
from trtbuild.stages.verify.float_errors import FloatModel, unknown_part
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.stages.verify.rounding import PerturbedRuns
from trtbuild.stages.verify.running import PartFailed, PartRunner, ReadBlob, TorchReference, Values, Weights


class Reference:
    """Runs the partitions of a model in PyTorch. For an ONNX source, `onnx_runner` runs them."""

    def __init__(
        self,
        job: VerifyJob,
        read: ReadBlob,
        partitions: Partitions,
        weights: Weights,
        onnx_runner: PartRunner | None,
    ) -> None:
        self._job = job
        self._read = read
        self._partitions = partitions
        self._weights = weights
        self._onnx_runner = onnx_runner
        self.torch = TorchReference(job.programs, weights, read)
        self._program = Program.from_bytes(read(job.program)) if job.program else None

    @property
    def name(self) -> str:
        return "PyTorch" if self._onnx_runner is None else "onnxruntime"

    @property
    def has_programs(self) -> bool:
        return self._onnx_runner is None

    def run_part(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        """Return the results of a partition. Raises PartFailed, and NotRunnable if they cannot be computed here."""
        if self._onnx_runner is not None:
            return self._onnx_runner(part, inputs, point)
        try:
            return self.torch.run_part(part, inputs)
        except Exception as error:  # an operator may raise any error
            raise PartFailed(_first_line(error)) from error

    def run_model(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return the traced program's results; None without a traced program. Raises PartFailed."""
        if self._program is None:
            return None
        try:
            return _run_whole(self._program, self._weights, inputs)
        except Exception as error:
            raise PartFailed(_first_line(error)) from error

    def perturbed_part_runs(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> PerturbedRuns:
        """Return additional runs of a partition on slightly changed values. Weights of an ONNX source do not change."""
        if self._onnx_runner is not None:
            return PerturbedRuns(lambda perturbed, _: self.run_part(part, perturbed, point), inputs, ())
        program = self.torch.program(part)
        return PerturbedRuns(
            lambda perturbed, weights: TorchReference.run_program(program, weights, perturbed),
            inputs,
            self.torch.weights(part),
        )

    def perturbed_model_runs(self, inputs: Sequence[torch.Tensor], point: Point) -> PerturbedRuns:
        program = self._program
        if program is None:
            return PerturbedRuns(lambda perturbed, _: self._run_parts(perturbed, point), inputs, ())
        weights = [self._weights[k] for k in range(len(self._weights))]
        return PerturbedRuns(
            lambda perturbed, weights: TorchReference.run_program(program, weights, perturbed), inputs, weights
        )

    def _run_parts(self, inputs: Sequence[torch.Tensor], point: Point) -> list[torch.Tensor]:
        values = Values(self._partitions, self._weights, inputs)
        for index, part in enumerate(self._partitions.partitions):
            values.put(index, part, self.run_part(part, values.inputs_of(part), point))
        return [values[source] for source in self._partitions.outputs]

    def failure_error(self, error: PartFailed, inputs: Sequence[torch.Tensor], point: Point) -> SourceError:
        """Return the error that says that the model itself fails on `inputs`."""
        names = [name for name, _ in self._job.inputs]
        inputs_by_name = dict(zip(names, inputs, strict=True))
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs_by_name.items())
        subject = "the model itself fails" if self._program is None else "the traced program itself fails"
        text = f"{subject} at {shapes}: {error}"
        input_numbers = self._failing_inputs(inputs, point) if is_index_error(str(error)) else []
        suspects = {names[number]: inputs[number] for number in input_numbers if blame.is_integer(inputs[number])}
        if suspects:
            text += f" ({blame.describe_values(suspects)})"
        if not suspects or self._job.replay is not None:
            hint = "give inputs that the model takes: trtbuild verify --replay FILE"
        else:
            hint = blame.range_hint(suspects, self._job.ranges)
        return SourceError(text, code="verify", hint=hint)

    def _failing_inputs(self, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[int]:
        if self._program is not None:
            weights = [self._weights[k] for k in range(len(self._weights))]
            return blame.inputs_of_failure(self._program, weights, inputs) or ()
        values = Values(self._partitions, self._weights, inputs)
        for index, part in enumerate(self._partitions.partitions):
            part_inputs = values.inputs_of(part)
            try:
                results = self.run_part(part, part_inputs, point)
            except PartFailed:
                in_torch = self._onnx_runner is None
                weights = self.torch.weights(part) if in_torch else []
                numbers = blame.inputs_of_failure(self.torch.program(part), weights, part_inputs) if in_torch else None
                return blame.inputs_of_partition(self._partitions, part, numbers)
            values.put(index, part, results)
        return ()

    # -- the float model

    def float_model(self) -> FloatModel | None:
        """Return the float model (`float_errors`); None if the model is not quantized."""
        if self._onnx_runner is not None:
            is_quantized = any(b"QuantizeLinear" in self._read(sha256) for sha256 in self._job.onnx.values())
            return FloatModel(None, "unknown for a model that comes as ONNX") if is_quantized else None
        if self._job.float_program is not None:
            traced = without_quantizers(Program.from_bytes(self._read(self._job.float_program.program)))
            float_weights = Weights(self._job.float_program.weights, self._read)
            return FloatModel(partial(_run_whole, traced.program, float_weights), unknown_part([traced]))
        if self._program is not None:
            if not (has_quantizers(self._program) or self._job.has_rounded_weights):
                return None
            traced = without_quantizers(Program.from_bytes(self._read(self._job.program)))
            return self._float_model([traced], partial(_run_whole, traced.program, self._weights))
        are_quantized = (has_quantizers(self.torch.program(part)) for part in self._partitions.partitions)
        if not (self._job.has_rounded_weights or any(are_quantized)):
            return None
        programs = {
            part.graph: without_quantizers(Program.from_bytes(self._read(self._job.programs[part.graph])))
            for part in self._partitions.partitions
        }
        return self._float_model([*programs.values()], lambda inputs: self._run_float_parts(programs, inputs))

    def _float_model(
        self, programs: Sequence[Unquantized], run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    ) -> FloatModel:
        unknown = unknown_part(programs, has_rounded_weights=self._job.has_rounded_weights)
        return FloatModel(run if any(program.removed for program in programs) else None, unknown)

    def _run_float_parts(
        self, programs: Mapping[str, Unquantized], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        values = Values(self._partitions, self._weights, inputs)
        for index, part in enumerate(self._partitions.partitions):
            program = programs[part.graph].program
            values.put(
                index, part, TorchReference.run_program(program, self.torch.weights(part), values.inputs_of(part))
            )
        return [values[source] for source in self._partitions.outputs]

    # -- properties of values

    def integer_ends(self) -> list[int]:
        """Return, for each input, the smallest integer that is too large; 2 if the input is not an index."""
        if self._program is not None:
            return verification_inputs.integer_ends(self._program)
        ends = [0] * len(self._job.inputs)
        for part in self._partitions.partitions:
            if self._onnx_runner is not None:
                from trtbuild.stages.verify.onnx_models.onnx_inputs import onnx_integer_ends  # it loads onnx

                part_ends = onnx_integer_ends(self._read(self._job.onnx[part.graph]), len(part.inputs))
            else:
                part_ends = verification_inputs.integer_ends(self.torch.program(part))
            for (source, _), end in zip(part.inputs, part_ends, strict=True):
                if source.startswith("input:") and end > 2:
                    number = int(source.removeprefix("input:"))
                    ends[number] = min(end, ends[number] or end)
        return [max(2, end) for end in ends]

    def part_precisions(self, part: Partition) -> Sequence[RoundedType]:
        return self._compute_part_precisions(part, [_precision_of_type(type_) for _, type_ in part.inputs])

    def model_precisions(self) -> Sequence[RoundedType]:
        """Return each output's precision in the traced program or in the partitions, whichever is coarser."""
        inputs = [precisions.precision_of_dtype(dtype) for _, dtype in self._job.inputs]
        weights = [precisions.precision_of_dtype(weight.dtype) for weight in self._job.weights]
        in_partitions = precisions.model_precisions(self._partitions, inputs, weights, self._compute_part_precisions)
        in_program = precisions.output_precisions(self._program) if self._program is not None else in_partitions
        return [coarsest_precision(pair) for pair in zip(in_partitions, in_program, strict=True)]

    def exact_outputs(self) -> frozenset[int]:
        """Return the positions of the outputs that must be exactly equal; an empty set without a traced program.

        Without a traced program, the reference runs the programs of the partitions, from which the engines are built, too.
        So a wrong number would be in both results."""
        return frozenset() if self._program is None else precisions.exact_outputs(self._program)

    def _compute_part_precisions(self, part: Partition, inputs: Sequence[RoundedType]) -> Sequence[RoundedType]:
        if self._onnx_runner is None:
            return precisions.output_precisions(self.torch.program(part), inputs)
        from trtbuild.stages.verify.onnx_models.onnx_precisions import onnx_precisions  # it loads onnx

        return onnx_precisions(self._read(self._job.onnx[part.graph]), inputs, len(part.outputs))


def _run_whole(program: Program, weights: Weights, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return TorchReference.run_program(program, [weights[slot] for slot in range(len(weights))], inputs)


def _precision_of_type(type_: TensorType) -> RoundedType:
    return precisions.precision_of_dtype(type_.dtype)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
