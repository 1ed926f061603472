"""Compare a model's partitions, and the whole model, with PyTorch.

Rules
1. At each point (a choice of input sizes and values), PyTorch runs the partitions in order. The runner (onnxruntime or
   engines) runs each TensorRT partition on PyTorch's values, and the results are compared. The runner also runs the whole
   model: each partition gets the runner's results of earlier partitions, and PyTorch runs the Torch partitions. The final
   result is compared with that of the traced program, and so is PyTorch's result of all partitions. (The trace has compared
   the traced program with the user's module.) Without a traced program, PyTorch's result of all partitions takes its place.
2. A partition that cannot run here is unchecked, with the reason. It never counts as right.
3. The report has the worst point of each partition and of the whole model. The inputs of the worst of these points are
   written to a file, unless they come from a file. The tolerance of an output follows from its precision (`precisions`).
   Values that rounding decides (`rounding`) are not compared, and the report has their number.
4. `locating` searches for the fault of a wrong partition, with the smallest inputs that give a wrong result. This needs
   onnxruntime, and PyTorch as the reference.
5. A model with an ONNX source has no PyTorch program, so the reference is onnxruntime on the CPU. It takes the place of
   PyTorch in these rules.
6. At the min, opt and max of profiles, the state of a model is the initial state in its package. At random points, the
   state is random.
7. The report of a quantized model also has the error of the whole model against the model without its quantizers
   (`float_errors`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import torch

from trtbuild.core.model.comparisons import PartitionComparison, Place, Report
from trtbuild.core.model.verification import Point, RoundedType, coarsest_precision
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.verify import inputs as verification_inputs
from trtbuild.stages.verify.comparing import Deviation, exact_deviation
from trtbuild.stages.verify.float_errors import FloatErrors
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.stages.verify.outcome import Outcome
from trtbuild.stages.verify.reference import Reference
from trtbuild.stages.verify.rounding import PerturbedRuns, deviations
from trtbuild.stages.verify.running import NotRunnable, PartFailed, PartRunner, ReadBlob, Values, Weights


def verify(job: VerifyJob, read: ReadBlob, runner: Callable[[VerifyJob, Weights], PartRunner] | None = None) -> Report:
    """Compare the results of `runner`, by default onnxruntime, with those of the reference. Returns the report.

    Raises SourceError if the reference fails at a point, and NotRunnable if it cannot run here. Raises UsageError if the
    file of inputs (`VerifyJob.replay`) does not fit the model, and OSError if the worst inputs cannot be written.
    """
    return _Verification(job, read, runner or _onnxruntime_factory(read)).report()


def _onnxruntime_factory(read: ReadBlob) -> Callable[[VerifyJob, Weights], PartRunner]:
    from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime

    return lambda job, weights: OnnxRuntime(lambda graph: read(job.onnx[graph]), weights)


class _Verification:
    def __init__(self, job: VerifyJob, read: ReadBlob, runner: Callable[[VerifyJob, Weights], PartRunner]) -> None:
        self._job = job
        self._read = read
        self._weights = Weights(job.weights, read)
        self._partitions = Partitions.from_bytes(read(job.partitions))
        onnx_runner = _onnxruntime_factory(read)(job, self._weights) if job.by_onnx else None
        self._reference = Reference(job, read, self._partitions, self._weights, onnx_runner)
        self._runner = runner(job, self._weights)
        #: For each input, the smallest integer that is too large, for example because the input is an index.
        self._integer_ends = self._reference.integer_ends()
        #: The inputs of `VerifyJob.replay`; None if the inputs are random.
        self._replayed = (
            verification_inputs.read_inputs(Path(job.replay), job.inputs, job.shapes[0])
            if job.replay is not None
            else None
        )
        self._points = job.points
        self._outcomes = {
            part.name: Outcome(self._reference.part_precisions(part), job.tolerances)
            for part in self._partitions.partitions
            if part.kind == "tensorrt"
        }
        model_precisions = self._reference.model_precisions()
        self._exact_outputs = self._reference.exact_outputs()
        float_model = self._reference.float_model()
        self._float_errors = None if float_model is None else FloatErrors(float_model)
        # the whole model run by the runner, and all partitions run by the reference
        self._whole_outcome, self._lowered_outcome = (
            Outcome(model_precisions, job.tolerances),
            Outcome(model_precisions, job.tolerances),
        )

    def report(self) -> Report:
        for number, point in enumerate(self._points):
            self._run_point(number, point)
        worst = self._write_worst_inputs()
        return Report(
            runner=self._runner.name,
            against=self._reference.name,
            points=self._points,
            tolerance=self._job.tolerances[coarsest_precision(self._precisions())],
            partitions=[self._partition(part) for part in self._partitions.partitions if part.name in self._outcomes],
            whole=self._whole_outcome.comparison(self._points),
            lowered=self._lowered_outcome.comparison(self._points),
            worst_input=worst,
            versions=_versions(),
            float_error=None if self._float_errors is None else self._float_errors.result(),
        )

    # -- the comparison

    def _inputs(self, number: int) -> list[torch.Tensor]:
        if self._replayed is not None:
            return self._replayed
        job = self._job
        point = self._points[number]
        values = verification_inputs.random_inputs(
            job.inputs, job.shapes[number], point, self._integer_ends, job.ranges
        )
        if job.first_state and not point.which.startswith("random"):
            first = Weights(job.first_state, self._read)
            values[-len(first) :] = [first[k] for k in range(len(first))]
        return values

    def _run_point(self, number: int, point: Point) -> None:
        """Compare each partition and the whole model at a point (rule 1)."""
        inputs = self._inputs(number)
        try:
            expected = self._reference.run_model(inputs)
        except PartFailed as error:
            raise self._reference.failure_error(error, inputs, point) from error
        reference_values, runner_values = (Values(self._partitions, self._weights, inputs) for _ in range(2))
        failure_text: str | None = None
        for index, part in enumerate(self._partitions.partitions):
            reference_inputs = reference_values.inputs_of(part)
            try:
                reference_results = self._reference.run_part(part, reference_inputs, point)
            except PartFailed as error:
                raise self._reference.failure_error(error, inputs, point) from error
            results = self._compare_partition(part, reference_inputs, reference_results, number, point)
            if failure_text is None:
                runner_inputs = runner_values.inputs_of(part)
                has_same_inputs = all(a is b for a, b in zip(reference_inputs, runner_inputs, strict=True))
                try:
                    if results is None or not has_same_inputs:
                        results = self._run_on_runner_results(part, runner_inputs, point, has_failed=results is None)
                    runner_values.put(index, part, results)
                except PartFailed as error:  # an earlier partition may have given a wrong index or size
                    failure_text = f"partition {part.name} fails on the results of earlier partitions: {error}"
            reference_values.put(index, part, reference_results)
        # the model's outputs, as the reference computes them partition by partition
        lowered = [reference_values[source] for source in self._partitions.outputs]
        perturbed_runs = self._reference.perturbed_model_runs(inputs, point)
        if expected is None:
            expected = lowered
        else:
            self._add_outputs(self._lowered_outcome, number, lowered, expected, perturbed_runs)
        if failure_text is not None:
            self._whole_outcome.add(number, [Deviation(math.inf, failure_text)], self._size)
        else:
            outputs = [runner_values[source] for source in self._partitions.outputs]
            self._add_outputs(self._whole_outcome, number, outputs, expected, perturbed_runs)
            if self._float_errors is not None:
                self._float_errors.add(outputs, inputs)

    def _add_outputs(
        self,
        outcome: Outcome,
        number: int,
        actual: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        perturbed_runs: PerturbedRuns,
    ) -> None:
        """Compare the outputs of a partition or of the whole model at a point, and add the results to `outcome`."""
        allowed = [self._job.tolerances[precision] for precision in outcome.precisions]
        results = deviations(actual, expected, allowed, perturbed_runs)
        if outcome is self._whole_outcome or outcome is self._lowered_outcome:
            for position in self._exact_outputs:
                results[position] = exact_deviation(actual[position], expected[position])
        outcome.add(number, results, self._size)

    def _precisions(self) -> Iterator[RoundedType]:
        for outcome in (*self._outcomes.values(), self._whole_outcome):
            yield from outcome.precisions

    def _compare_partition(
        self,
        part: Partition,
        inputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        number: int,
        point: Point,
    ) -> Sequence[torch.Tensor] | None:
        """Compare one partition on PyTorch's values. Returns its results, or None if it cannot run or fails. For a
        Torch partition, returns `expected`."""
        if part.kind == "torch":
            return expected
        outcome = self._outcomes[part.name]
        if outcome.unchecked is not None:
            return None
        try:
            results = self._runner(part, inputs, point)
        except NotRunnable as error:
            outcome.unchecked = str(error)
            return None
        except PartFailed as error:
            outcome.add(number, [Deviation(math.inf, str(error))], self._size)
            return None
        self._add_outputs(outcome, number, results, expected, self._reference.perturbed_part_runs(part, inputs, point))
        return results

    def _run_on_runner_results(
        self, part: Partition, inputs: Sequence[torch.Tensor], point: Point, *, has_failed: bool
    ) -> Sequence[torch.Tensor]:
        """Return the results of a partition on the runner's results of earlier partitions.

        PyTorch runs Torch partitions and unchecked partitions. If the runner has failed on PyTorch's values (`has_failed`)
        and fails on its own values, too, PyTorch runs the partition instead. Raises PartFailed.
        """
        if part.kind == "tensorrt" and self._outcomes[part.name].unchecked is None:
            try:
                return self._runner(part, inputs, point)
            except PartFailed:
                if not has_failed:  # otherwise the outcome has the failure already
                    raise
        return self._reference.run_part(part, inputs, point)

    def _size(self, number: int) -> int:
        return sum(math.prod(shape) for shape in self._job.shapes[number])

    # -- the report

    def _partition(self, part: Partition) -> PartitionComparison:
        outcome = self._outcomes[part.name]
        return PartitionComparison(
            partition=part.name,
            onnx=self._job.onnx.get(part.graph),
            **vars(outcome.comparison(self._points)),
            place=None if outcome.smallest_wrong is None else self._place(part, outcome.smallest_wrong),
        )

    def _place(self, part: Partition, number: int) -> Place | None:
        if not self._reference.has_programs or part.graph not in self._job.onnx or find_spec("onnxruntime") is None:
            return None
        from trtbuild.stages.verify.locating import FaultSearch
        from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime

        inputs = self._inputs(number)
        values = Values(self._partitions, self._weights, inputs)
        for index, earlier in enumerate(self._partitions.partitions):
            if earlier.name == part.name:
                break
            values.put(index, earlier, self._reference.torch.run_part(earlier, values.inputs_of(earlier)))
        search = FaultSearch(
            part,
            self._reference.torch.program(part),
            self._read(self._job.onnx[part.graph]),
            [(name, call) for name, call in json.loads(self._read(self._job.origins[part.graph]))],
            json.loads(self._read(self._job.modules)),
            self._job.tolerances,
        )
        onnx = OnnxRuntime(lambda graph: self._read(self._job.onnx[graph]), self._weights)
        try:
            return search.find_place(onnx, self._reference.torch.weights(part), values.inputs_of(part))
        except (NotRunnable, PartFailed):
            return None

    def _write_worst_inputs(self) -> str | None:
        """Write the inputs of the worst point to a file. Returns its path, or None if nothing was written."""
        outcomes = [outcome for outcome in (*self._outcomes.values(), self._whole_outcome) if outcome.point is not None]
        if self._job.worst is None or not outcomes or self._replayed is not None:
            return None
        number = max(outcomes, key=lambda outcome: (outcome.relative_error, outcome.worst.error)).point or 0
        inputs_by_name = dict(zip([name for name, _ in self._job.inputs], self._inputs(number), strict=True))
        metadata = {"trtbuild.point": json.dumps(asdict(self._points[number]))}
        verification_inputs.write_inputs(Path(self._job.worst), inputs_by_name, metadata)
        return self._job.worst


def _versions() -> Mapping[str, str]:
    versions = {"torch": str(torch.__version__)}
    onnxruntime = sys.modules.get("onnxruntime")
    return versions if onnxruntime is None else {**versions, "onnxruntime": str(onnxruntime.__version__)}
