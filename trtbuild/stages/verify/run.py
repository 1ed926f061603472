"""Comparing a model's partitions, and the model as a whole, with PyTorch.

Rules
1. Every point is run in PyTorch first, partition after partition, so that each is compared on values that really reach it;
   then the partitions one after the other as they will run, against the traced program (which was compared with the
   user's module when it was traced).
2. What cannot be run here is said to be unchecked, with the reason; it counts as right nowhere.
3. Of each partition, and of the whole, the worst point is reported. Its inputs are kept in a file. How far away an
   output may be follows from what it was computed in (`precisions`).
4. A partition that is wrong is looked into at the smallest point where it is (`locating`).
5. A model that comes as ONNX has no program of PyTorch's: onnxruntime computes its model on the CPU, and that is right.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.partitions import Partition, Partitions, TensorType
from trtbuild.core.spec import Precision
from trtbuild.core.verification import Point, coarsest
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.verify import inputs as inputs_of
from trtbuild.stages.verify import precisions
from trtbuild.stages.verify.comparing import Gap, gap
from trtbuild.stages.verify.found import Found
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.stages.verify.running import Fails, PartRunner, Read, Torch, Unchecked, Values, Weights

Report = dict[str, Any]

_GIVE_INPUTS = "give inputs that the model takes: trtbuild verify --replay FILE"


def verify(job: VerifyJob, read: Read, runner: Callable[[VerifyJob, Weights], PartRunner] | None = None) -> Report:
    """The report: `points`, `partitions`, `whole`, `lowered`, `worst_input`, `runner`, `against`, `versions`.

    Raises SourceError where what is right cannot be computed at a point, Unchecked where it cannot be here at all.
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
        self._torch = Torch(job.programs, self._weights, read)
        self._onnx = _by_onnxruntime(read)(job, self._weights) if job.by_onnx else None
        self._partitions = Partitions.from_bytes(read(job.partitions))
        self._program = Program.from_bytes(read(job.program)) if job.program else None
        self._runner = runner(job, self._weights)
        self._ends = self._integer_ends()
        self._replayed = inputs_of.read(Path(job.replay), job.inputs) if job.replay is not None else None
        self._points = job.points
        self._parts = {
            part.name: Found(self._of_part(part, [_of_type(type_) for _, type_ in part.inputs]), job.tolerances)
            for part in self._partitions.partitions
            if part.kind == "tensorrt"
        }
        whole = self._of_whole()
        self._whole, self._lowered = Found(whole, job.tolerances), Found(whole, job.tolerances)

    def report(self) -> Report:
        for number, point in enumerate(self._points):
            self._at(number, point)
        worst = self._worst_input()
        return {
            "runner": self._runner.name,
            "against": "PyTorch" if self._onnx is None else "onnxruntime",
            "points": [point.to_json() for point in self._points],
            "tolerance": self._job.tolerances[coarsest(self._precisions())],
            "partitions": [self._partition(part) for part in self._partitions.partitions if part.name in self._parts],
            "whole": self._whole.entry(self._points),
            "lowered": self._lowered.entry(self._points),
            "worst_input": worst,
            "versions": _versions(),
        }

    # -- the comparison

    def _inputs(self, number: int) -> list[torch.Tensor]:
        if self._replayed is not None:
            return self._replayed
        job = self._job
        return inputs_of.random_inputs(job.inputs, job.shapes[number], self._points[number], self._ends)

    def _at(self, number: int, point: Point) -> None:
        inputs = self._inputs(number)
        want = self._traced(inputs)
        right, ours = (Values(self._partitions, self._weights, inputs) for _ in range(2))
        for index, part in enumerate(self._partitions.partitions):
            theirs_in, ours_in = right.of(part), ours.of(part)
            theirs = self._right(part, theirs_in, point)
            same = all(a is b for a, b in zip(theirs_in, ours_in, strict=True))
            results = self._compared(part, theirs_in, theirs, number, point)
            if results is None or not same:
                results = self._run_ours(part, ours_in, point)
            right.put(index, part, theirs)
            ours.put(index, part, results)
        traced = [(self._whole, ours)] if want is None else [(self._whole, ours), (self._lowered, right)]
        want = [right[source] for source in self._partitions.outputs] if want is None else want
        for found, values in traced:
            gaps = [gap(values[source], b) for source, b in zip(self._partitions.outputs, want, strict=True)]
            found.see(number, gaps, self._size)

    def _right(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        """What a partition's results should be. Raises SourceError, and Unchecked where nothing here computes them."""
        if self._onnx is None:
            return self._torch.part(part, inputs)
        try:
            return self._onnx(part, inputs, point)
        except Fails as error:
            raise SourceError(
                f"there is nothing to compare with at {self._shapes(inputs)}: {error}", code="verify", hint=_GIVE_INPUTS
            ) from error

    def _traced(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The traced program's results, where it is known. Raises SourceError."""
        if self._program is None:
            return None
        try:
            return Torch.whole(self._program, [self._weights[k] for k in range(len(self._weights))], inputs)
        except Exception as error:
            raise SourceError(
                f"the traced program itself fails at {self._shapes(inputs)}: {_first_line(error)}",
                code="verify",
                hint=_GIVE_INPUTS,
            ) from error

    def _integer_ends(self) -> list[int]:
        """For each input one more than the largest integer that it may be given: as the programs say that take it."""
        if self._program is not None:
            return inputs_of.integer_ends(self._program)
        ends = [0] * len(self._job.inputs)
        for part in self._partitions.partitions:
            if self._onnx is not None:
                from trtbuild.stages.verify.onnx_inputs import onnx_integer_ends  # it loads onnx

                taken = onnx_integer_ends(self._read(self._job.onnx[part.graph]), len(part.inputs))
            else:
                taken = inputs_of.integer_ends(self._torch.program(part))
            for (source, _), end in zip(part.inputs, taken, strict=True):
                if source.startswith("input:") and end > 2:
                    number = int(source.removeprefix("input:"))
                    ends[number] = min(end, ends[number] or end)
        return [max(2, end) for end in ends]

    def _precisions(self) -> Iterator[Precision]:
        """Those of every output of a partition and of the whole."""
        for found in (*self._parts.values(), self._whole):
            yield from found.precisions

    def _of_part(self, part: Partition, inputs: Sequence[Precision]) -> Sequence[Precision]:
        """What the outputs of a partition are computed in, its inputs being of these precisions."""
        if self._onnx is None:
            return precisions.of_outputs(self._torch.program(part), inputs)
        from trtbuild.stages.verify.onnx_precisions import onnx_precisions  # it loads onnx

        return onnx_precisions(self._read(self._job.onnx[part.graph]), inputs, len(part.outputs))

    def _of_whole(self) -> Sequence[Precision]:
        """What the model's outputs are computed in, by the traced program and by the partitions."""
        inputs = [precisions.of_dtype(dtype) for _, dtype in self._job.inputs]
        weights = [precisions.of_dtype(weight.dtype) for weight in self._job.weights]
        found = precisions.of_model(self._partitions, inputs, weights, self._of_part)
        traced = precisions.of_outputs(self._program) if self._program is not None else found
        return [coarsest(pair) for pair in zip(found, traced, strict=True)]

    def _compared(
        self,
        part: Partition,
        inputs: Sequence[torch.Tensor],
        theirs: Sequence[torch.Tensor],
        number: int,
        point: Point,
    ) -> Sequence[torch.Tensor] | None:
        """Compare one partition on PyTorch's own values; its results, or None where there are none."""
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
        found.see(number, [gap(a, b) for a, b in zip(results, theirs, strict=True)], self._size)
        return results

    def _run_ours(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        if part.kind == "tensorrt" and self._parts[part.name].unchecked is None:
            try:
                return self._runner(part, inputs, point)
            except Fails:  # said already, of this partition on its own
                pass
        return self._right(part, inputs, point)

    def _size(self, number: int) -> int:
        return sum(math.prod(shape) for shape in self._job.shapes[number])

    # -- the report

    def _partition(self, part: Partition) -> Report:
        found = self._parts[part.name]
        entry = {"partition": part.name, "onnx": self._job.onnx.get(part.graph), **found.entry(self._points)}
        smallest = found.smallest
        return {**entry, "place": None if smallest is None else self._place(part, smallest)}

    def _place(self, part: Partition, number: int) -> Report | None:
        """Where the partition goes wrong; None where that cannot be told."""
        if self._onnx is not None or part.graph not in self._job.onnx or find_spec("onnxruntime") is None:
            return None
        from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
        from trtbuild.stages.verify.locating import Search

        inputs = self._inputs(number)
        values = Values(self._partitions, self._weights, inputs)
        for index, each in enumerate(self._partitions.partitions):
            if each.name == part.name:
                break
            values.put(index, each, self._torch.part(each, values.of(each)))
        search = Search(
            part,
            self._torch.program(part),
            self._read(self._job.onnx[part.graph]),
            [(name, call) for name, call in json.loads(self._read(self._job.origins[part.graph]))],
            json.loads(self._read(self._job.modules)),
            self._job.tolerances,
        )
        onnx = OnnxRuntime(lambda graph: self._read(self._job.onnx[graph]), self._weights)
        try:
            place = search.place(onnx, self._torch.weights(part), values.of(part))
        except (Unchecked, Fails):
            return None
        return None if place is None else place.to_json()

    def _worst_input(self) -> str | None:
        """Keep the inputs of the worst point of all; the file's path."""
        found = [each for each in (*self._parts.values(), self._whole) if each.point is not None]
        if self._job.worst is None or not found or self._replayed is not None:
            return None
        number = max(found, key=lambda each: (each.share, each.worst.error)).point or 0
        named = dict(zip([name for name, _ in self._job.inputs], self._inputs(number), strict=True))
        about = {"trtbuild.point": json.dumps(self._points[number].to_json())}
        inputs_of.write(Path(self._job.worst), named, about)
        return self._job.worst

    def _shapes(self, inputs: Sequence[torch.Tensor]) -> str:
        named = zip(self._job.inputs, inputs, strict=True)
        return ", ".join(f"{name} {list(value.shape)}" for (name, _), value in named)


def _of_type(type_: TensorType) -> Precision:
    return precisions.of_dtype(type_.dtype)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _versions() -> Mapping[str, str]:
    found = {"torch": str(torch.__version__)}
    onnxruntime = sys.modules.get("onnxruntime")
    return found if onnxruntime is None else {**found, "onnxruntime": str(onnxruntime.__version__)}
