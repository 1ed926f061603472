"""Compare a model's partitions, and the whole model, with PyTorch.

Rules
1. At each point PyTorch runs first, partition after partition, so that each partition is compared on the values that
   really reach it. Then the partitions run in order, and the result is compared with the traced program. (The trace has
   compared that with the user's module.)
2. A partition that cannot run here is reported as unchecked, with the reason. It never counts as right.
3. The report has the worst point of each partition and of the whole model. A file keeps the inputs of the worst one.
   The tolerance of an output follows from its precision (`precisions`). Values that rounding decides (`rounding`) are not
   compared, and the report says how many.
4. The fault of a wrong partition is located at its smallest wrong point (`locating`).
5. A model with an ONNX source has no PyTorch program: the reference is onnxruntime on the CPU.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from trtbuild.core.model.comparisons import PartitionComparison, Place, Report
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Point, coarsest
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.verify import inputs as inputs_of
from trtbuild.stages.verify.comparing import Gap, exact_gap
from trtbuild.stages.verify.found import Found
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.stages.verify.reference import Reference
from trtbuild.stages.verify.rounding import Again, gaps
from trtbuild.stages.verify.running import Fails, PartRunner, Read, Unchecked, Values, Weights


def verify(job: VerifyJob, read: Read, runner: Callable[[VerifyJob, Weights], PartRunner] | None = None) -> Report:
    """Return the report of a cut.

    Raises SourceError if the reference fails at a point, and Unchecked if it cannot run here.
    """
    return _Verification(job, read, runner or _by_onnxruntime(read)).report()


def _by_onnxruntime(read: Read) -> Callable[[VerifyJob, Weights], PartRunner]:
    from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime

    return lambda job, weights: OnnxRuntime(lambda graph: read(job.onnx[graph]), weights)


class _Verification:
    def __init__(self, job: VerifyJob, read: Read, runner: Callable[[VerifyJob, Weights], PartRunner]) -> None:
        self._job = job
        self._read = read
        self._weights = Weights(job.weights, read)
        self._partitions = Partitions.from_bytes(read(job.partitions))
        by_onnx = _by_onnxruntime(read)(job, self._weights) if job.by_onnx else None
        self._reference = Reference(job, read, self._partitions, self._weights, by_onnx)
        self._runner = runner(job, self._weights)
        self._ends = self._reference.integer_ends()
        self._replayed = inputs_of.read(Path(job.replay), job.inputs) if job.replay is not None else None
        self._points = job.points
        self._parts = {
            part.name: Found(self._reference.precisions_of(part), job.tolerances)
            for part in self._partitions.partitions
            if part.kind == "tensorrt"
        }
        whole = self._reference.precisions()
        self._exact = self._reference.exact_outputs()
        self._whole, self._lowered = Found(whole, job.tolerances), Found(whole, job.tolerances)

    def report(self) -> Report:
        for number, point in enumerate(self._points):
            self._at(number, point)
        worst = self._worst_input()
        return Report(
            runner=self._runner.name,
            against=self._reference.name,
            points=self._points,
            tolerance=self._job.tolerances[coarsest(self._precisions())],
            partitions=[self._partition(part) for part in self._partitions.partitions if part.name in self._parts],
            whole=self._whole.comparison(self._points),
            lowered=self._lowered.comparison(self._points),
            worst_input=worst,
            versions=_versions(),
        )

    # -- the comparison

    def _inputs(self, number: int) -> list[torch.Tensor]:
        if self._replayed is not None:
            return self._replayed
        job = self._job
        return inputs_of.random_inputs(job.inputs, job.shapes[number], self._points[number], self._ends, job.ranges)

    def _at(self, number: int, point: Point) -> None:
        inputs = self._inputs(number)
        try:
            want = self._reference.model(inputs)
        except Fails as error:
            raise self._reference.failure(error, inputs, point) from error
        right, ours = (Values(self._partitions, self._weights, inputs) for _ in range(2))
        broken: str | None = None
        for index, part in enumerate(self._partitions.partitions):
            theirs_in = right.of(part)
            try:
                theirs = self._reference.part(part, theirs_in, point)
            except Fails as error:
                raise self._reference.failure(error, inputs, point) from error
            results = self._compared(part, theirs_in, theirs, number, point)
            if broken is None:
                ours_in = ours.of(part)
                same = all(a is b for a, b in zip(theirs_in, ours_in, strict=True))
                try:
                    ours.put(index, part, results if results is not None and same else self._ours(part, ours_in, point))
                except Fails as error:  # an earlier partition gave a wrong index or size
                    broken = f"partition {part.name} fails on the results of earlier partitions: {error}"
            right.put(index, part, theirs)
        lowered = [right[source] for source in self._partitions.outputs]
        again = self._reference.model_again(inputs, point)
        if want is None:
            want = lowered
        else:
            self._see(self._lowered, number, lowered, want, again)
        if broken is not None:
            self._whole.see(number, [Gap(math.inf, broken)], self._size)
        else:
            self._see(self._whole, number, [ours[source] for source in self._partitions.outputs], want, again)

    def _see(
        self, found: Found, number: int, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], again: Again
    ) -> None:
        """Compare the results of a partition or of the whole model at a point."""
        allowed = [self._job.tolerances[precision] for precision in found.precisions]
        results = gaps(ours, theirs, allowed, again)
        if found is self._whole or found is self._lowered:
            for position in self._exact:
                results[position] = exact_gap(ours[position], theirs[position])
        found.see(number, results, self._size)

    def _precisions(self) -> Iterator[Precision]:
        """The precisions of all outputs, of the partitions and of the whole model."""
        for found in (*self._parts.values(), self._whole):
            yield from found.precisions

    def _compared(
        self,
        part: Partition,
        inputs: Sequence[torch.Tensor],
        theirs: Sequence[torch.Tensor],
        number: int,
        point: Point,
    ) -> Sequence[torch.Tensor] | None:
        """Compare one partition on PyTorch's own values. Returns its results, or None if there are no results."""
        if part.kind == "torch":
            return theirs
        found = self._parts[part.name]
        if found.unchecked is not None:
            return None
        try:
            results = self._runner(part, inputs, point)
        except Unchecked as error:
            found.unchecked = str(error)
            return None
        except Fails as error:
            found.see(number, [Gap(math.inf, str(error))], self._size)
            return None
        self._see(found, number, results, theirs, self._reference.part_again(part, inputs, point))
        return results

    def _ours(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        """The results of a partition on the results of earlier partitions. Raises Fails."""
        if part.kind == "tensorrt" and self._parts[part.name].unchecked is None:
            try:
                return self._runner(part, inputs, point)
            except Fails:  # reported already for this partition
                pass
        return self._reference.part(part, inputs, point)

    def _size(self, number: int) -> int:
        return sum(math.prod(shape) for shape in self._job.shapes[number])

    # -- the report

    def _partition(self, part: Partition) -> PartitionComparison:
        found = self._parts[part.name]
        return PartitionComparison(
            partition=part.name,
            onnx=self._job.onnx.get(part.graph),
            **vars(found.comparison(self._points)),
            place=None if found.smallest is None else self._place(part, found.smallest),
        )

    def _place(self, part: Partition, number: int) -> Place | None:
        """The place of the partition's fault; None if it cannot be located."""
        if not self._reference.has_programs or part.graph not in self._job.onnx or find_spec("onnxruntime") is None:
            return None
        from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
        from trtbuild.stages.verify.locating import Search

        inputs = self._inputs(number)
        values = Values(self._partitions, self._weights, inputs)
        for index, each in enumerate(self._partitions.partitions):
            if each.name == part.name:
                break
            values.put(index, each, self._reference.torch.part(each, values.of(each)))
        search = Search(
            part,
            self._reference.torch.program(part),
            self._read(self._job.onnx[part.graph]),
            [(name, call) for name, call in json.loads(self._read(self._job.origins[part.graph]))],
            json.loads(self._read(self._job.modules)),
            self._job.tolerances,
        )
        onnx = OnnxRuntime(lambda graph: self._read(self._job.onnx[graph]), self._weights)
        try:
            return search.place(onnx, self._reference.torch.weights(part), values.of(part))
        except (Unchecked, Fails):
            return None

    def _worst_input(self) -> str | None:
        """Write the inputs of the worst point of all to a file. Returns its path."""
        found = [each for each in (*self._parts.values(), self._whole) if each.point is not None]
        if self._job.worst is None or not found or self._replayed is not None:
            return None
        number = max(found, key=lambda each: (each.relative_error, each.worst.error)).point or 0
        named = dict(zip([name for name, _ in self._job.inputs], self._inputs(number), strict=True))
        about = {"trtbuild.point": json.dumps(self._points[number].to_json())}
        inputs_of.write(Path(self._job.worst), named, about)
        return self._job.worst


def _versions() -> Mapping[str, str]:
    found = {"torch": str(torch.__version__)}
    onnxruntime = sys.modules.get("onnxruntime")
    return found if onnxruntime is None else {**found, "onnxruntime": str(onnxruntime.__version__)}
