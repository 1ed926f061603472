"""What is right: what PyTorch computes of a model's programs, or onnxruntime of a model that came as ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Point, coarsest
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.core.values.value_ranges import is_beyond
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.verify import blame, precisions
from trtbuild.stages.verify import inputs as inputs_of
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.stages.verify.running import Fails, PartRunner, Read, Torch, Values, Weights


class Reference:
    """The programs of one cut, run in PyTorch; of a model that came as ONNX, run by `onnx`."""

    def __init__(
        self, job: VerifyJob, read: Read, partitions: Partitions, weights: Weights, onnx: PartRunner | None
    ) -> None:
        self._job = job
        self._read = read
        self._partitions = partitions
        self._weights = weights
        self._onnx = onnx
        self.torch = Torch(job.programs, weights, read)
        self._program = Program.from_bytes(read(job.program)) if job.program else None

    @property
    def name(self) -> str:
        return "PyTorch" if self._onnx is None else "onnxruntime"

    @property
    def has_programs(self) -> bool:
        return self._onnx is None

    def part(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        """What a partition's results should be. Raises Fails, and Unchecked where nothing here computes them."""
        if self._onnx is not None:
            return self._onnx(part, inputs, point)
        try:
            return self.torch.part(part, inputs)
        except Exception as error:  # whatever operators raise
            raise Fails(_first_line(error)) from error

    def model(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The traced program's results, where it is known. Raises Fails."""
        if self._program is None:
            return None
        try:
            return Torch.whole(self._program, [self._weights[k] for k in range(len(self._weights))], inputs)
        except Exception as error:
            raise Fails(_first_line(error)) from error

    def failure(self, error: Fails, inputs: Sequence[torch.Tensor], point: Point) -> SourceError:
        """What to tell where nothing is right, because the model itself fails on `inputs`."""
        names = [name for name, _ in self._job.inputs]
        named = dict(zip(names, inputs, strict=True))
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in named.items())
        what = "the model itself fails" if self._program is None else "the traced program itself fails"
        text = f"{what} at {shapes}: {error}"
        leading = self._leading(inputs, point) if is_beyond(str(error)) else []
        guilty = {names[number]: inputs[number] for number in leading if blame.is_integer(inputs[number])}
        if guilty:
            text += f" ({blame.told(guilty)})"
        if not guilty or self._job.replay is not None:
            hint = "give inputs that the model takes: trtbuild verify --replay FILE"
        else:
            hint = blame.what_to_do(guilty, self._job.ranges)
        return SourceError(text, code="verify", hint=hint)

    def _leading(self, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[int]:
        """The numbers of the inputs that lead to what fails."""
        if self._program is not None:
            weights = [self._weights[k] for k in range(len(self._weights))]
            return blame.inputs_of_failure(self._program, weights, inputs) or ()
        values = Values(self._partitions, self._weights, inputs)
        for index, part in enumerate(self._partitions.partitions):
            given = values.of(part)
            try:
                results = self.part(part, given, point)
            except Fails:
                by_torch = self._onnx is None
                weights = self.torch.weights(part) if by_torch else []
                taken = blame.inputs_of_failure(self.torch.program(part), weights, given) if by_torch else None
                return blame.inputs_of_partition(self._partitions, part, taken)
            values.put(index, part, results)
        return ()

    # -- what the programs say of values

    def integer_ends(self) -> list[int]:
        """For each input one more than the largest integer that it may be given: as the programs say that take it."""
        if self._program is not None:
            return inputs_of.integer_ends(self._program)
        ends = [0] * len(self._job.inputs)
        for part in self._partitions.partitions:
            if self._onnx is not None:
                from trtbuild.stages.verify.onnx_inputs import onnx_integer_ends  # it loads onnx

                taken = onnx_integer_ends(self._read(self._job.onnx[part.graph]), len(part.inputs))
            else:
                taken = inputs_of.integer_ends(self.torch.program(part))
            for (source, _), end in zip(part.inputs, taken, strict=True):
                if source.startswith("input:") and end > 2:
                    number = int(source.removeprefix("input:"))
                    ends[number] = min(end, ends[number] or end)
        return [max(2, end) for end in ends]

    def precisions_of(self, part: Partition) -> Sequence[Precision]:
        """What the outputs of a partition are computed in, by itself."""
        return self._of_part(part, [_of_type(type_) for _, type_ in part.inputs])

    def precisions(self) -> Sequence[Precision]:
        """What the model's outputs are computed in, by the traced program and by the partitions."""
        inputs = [precisions.of_dtype(dtype) for _, dtype in self._job.inputs]
        weights = [precisions.of_dtype(weight.dtype) for weight in self._job.weights]
        found = precisions.of_model(self._partitions, inputs, weights, self._of_part)
        traced = precisions.of_outputs(self._program) if self._program is not None else found
        return [coarsest(pair) for pair in zip(found, traced, strict=True)]

    def _of_part(self, part: Partition, inputs: Sequence[Precision]) -> Sequence[Precision]:
        if self._onnx is None:
            return precisions.of_outputs(self.torch.program(part), inputs)
        from trtbuild.stages.verify.onnx_precisions import onnx_precisions  # it loads onnx

        return onnx_precisions(self._read(self._job.onnx[part.graph]), inputs, len(part.outputs))


def _of_type(type_: TensorType) -> Precision:
    return precisions.of_dtype(type_.dtype)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
