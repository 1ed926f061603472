"""Prove a trace: compare program and model at several points.

A *point* is a size for each symbol. A *guard* is a condition on sizes that torch assumes while it traces a model.

Rules
1. The points are the example, those of the job (`core.model.shapes.proof_points`), and sizes at which guards fail
   (`guards`). Program and model are compared once at each point. If there is one point only, they are compared twice,
   because a model may keep values between calls, for example in a list. Then its second call differs from the program. For
   a model with declared state, `state` compares two calls.
2. Model and program get the same seeded inputs. Dtypes, shapes and the places of NaN must be equal. The largest
   difference, relative to the largest number, must be at most `TOLERANCES` (`differences`). Integers, bools and constants
   must be equal, and so must the classes and keys of tuples and dicts. A float that the model reads from a tensor
   (``item``) is compared in the tensor's dtype.
3. Values are always compared at the smallest point. If comparing values at the other points would take long, *flows* are
   compared there instead (`dataflow`): model and program must call the same operators on the same values. This takes
   milliseconds, and proves more. If the flows at a point differ, values are compared there, too. A forked copy of this
   process compares the flows. For a large model, values and flows are compared at the same time.
4. A call must not write to its inputs or to the module's weights and buffers. This is checked at every point, because a
   branch could write at one size only.
5. If only the places of NaN differ, the bool inputs are also tried as all False and as all True. A random mask may hide
   all keys of a row of an attention, and PyTorch's implementations return different values for such a row. One of the two
   other masks hides no key.
6. The program runs with the weights in their stored form, because all later steps use this form.
7. The results of operators from outside PyTorch must have the sizes that their fake implementations declare. An operator
   without a kernel for the CPU gets a substitute (`trtbuild.stages.program.cpu_kernels`), for the model and the program.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.finalizing import FinalProgram
from trtbuild.stages.trace.export.guards.guard import GuardFailure
from trtbuild.stages.trace.export.weights import identity, stored_form
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.at_point import (
    Point,
    element_count,
    example_sizes,
    kept_values_error,
    prove_point,
    run_program,
)
from trtbuild.stages.trace.proof.background import ForkedCall
from trtbuild.stages.trace.proof.dataflow import Flows, WeightKeys
from trtbuild.stages.trace.proof.returned import returned_tensors
from trtbuild.stages.trace.user_code.frames import Frames

#: For a model with more bytes of weights than this, flows are always compared (rule 3), and nothing is compared
#: in `Proof.__enter__`.
LARGE_WEIGHTS_BYTES = 64 << 20

#: If comparing values at all other points takes more seconds than this, by an estimate, flows are compared first (rule 3).
FLOWS_WORTHWHILE_S = 1.0


class Proof:
    """Compares program and model, at the smallest point on entry, and at the other points in `finish`. A large model is
    compared in `finish` only, so that the caller can announce the program first.

    `final` has the traced program in its final form, and maps the model's results to the program's outputs.
    `dependency_state` returns a value that changes with each new dependency of user code.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        final: FinalProgram,
        guard_failures: Sequence[GuardFailure],
        job: TraceJob,
        frames: Frames,
        dependency_state: Callable[[], object] = lambda: None,
    ) -> None:
        self._module, self._final, self._job, self._frames, self._dependency_state = (
            module,
            final,
            job,
            frames,
            dependency_state,
        )
        points = {sizes: Point(sizes) for sizes in dict.fromkeys((example_sizes(job), *job.points))}
        for failure in guard_failures:
            point = points.setdefault(failure.sizes, Point(failure.sizes, failure))
            if point.guard_failure is None:
                points[failure.sizes] = Point(failure.sizes, failure)
        # small points first: they show most errors in milliseconds
        self._points = sorted(points.values(), key=lambda p: (element_count(p, job), p.sizes))
        #: The points that are compared after the smallest point: all others, or the only point once more (rule 1).
        self._later_points = self._points[1:] or ([] if job.state else self._points)
        self._weights = [stored_form(weight.value) for weight in final.weights]
        #: Whether the model is large (`LARGE_WEIGHTS_BYTES`).
        self.is_large = sum(weight.nbytes for weight in self._weights) > LARGE_WEIGHTS_BYTES
        self._comparison: ForkedCall | None = None

    def __enter__(self) -> Proof:
        """Compare values at the smallest point. Raises SourceError. If this would take long at the other points, a forked
        copy begins to compare flows there."""
        if self.is_large:
            return self
        first = self._points[0]
        duration_s = self._compare(first)
        total = sum(element_count(point, self._job) for point in self._later_points)
        if duration_s * total / max(element_count(first, self._job), 1) > FLOWS_WORTHWHILE_S:
            self._comparison = ForkedCall(self._equal_flows).__enter__()
        return self

    def finish(self) -> None:
        """Compare values at the remaining points, except those where the flows are equal. Raises SourceError."""
        if self.is_large:
            self._comparison = ForkedCall(self._equal_flows).__enter__() if self._later_points else None
            self._compare(self._points[0])
        answer = self._comparison.answer() if self._comparison is not None else None
        for point, is_equal in zip(self._later_points, answer or [False] * len(self._later_points), strict=True):
            if not is_equal:
                self._compare_later(point)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._comparison is not None:
            self._comparison.__exit__(kind, error, tb)

    def _compare(self, point: Point) -> float:
        """Compare values at one point. Returns the duration in seconds, without the garbage collection, because that takes
        equally long at every point."""
        started = time.monotonic()
        prove_point(point, self._module, self._final, self._weights, self._job, self._frames)
        duration_s = time.monotonic() - started
        gc.collect()
        return duration_s

    def _compare_later(self, point: Point) -> None:
        """Compare values at a point of `_later_points`. If they differ, the smallest point is compared once more: a
        new difference there shows that the reason is an earlier call, and not the sizes."""
        try:
            self._compare(point)
        except SourceError as error:
            if error.code == "frozen-branch" and self._fails(self._points[0]):
                raise kept_values_error(self._job) from error
            raise

    def _fails(self, point: Point) -> bool:
        try:
            self._compare(point)
        except SourceError:
            return True
        return False

    def _equal_flows(self) -> list[bool]:
        """For each of `_later_points`, whether the flows of model and program are equal there."""
        module_slots = {id(weight): str(slot) for slot, weight in enumerate(self._final.weights)}
        slots = {identity(value): str(slot) for slot, value in enumerate(self._weights)}

        def weight_key(tensor: torch.Tensor) -> str | None:
            weight = self._final.module_weights.find(tensor)
            return slots.get(identity(tensor)) if weight is None else module_slots.get(id(weight))

        before = self._dependency_state()
        answers, flows = [], Flows()  # the same `Flows` for all calls: it finds a tensor that the model has kept
        if self.is_large:  # the first call in this copy: the points below must be compared in later calls (rule 1)
            with contextlib.suppress(Exception):
                self._has_equal_flow(self._points[0], flows, weight_key)
        for point in self._later_points:
            equal = False
            with contextlib.suppress(Exception):
                equal = self._has_equal_flow(point, flows, weight_key)
            # User code may have a new dependency in this forked copy, which the parent process does not know. The answer
            # is then False, so that the parent compares values, and finds the dependency, too.
            answers.append(equal and self._dependency_state() == before)
        return answers

    def _has_equal_flow(self, point: Point, flows: Flows, weight_keys: WeightKeys) -> bool:
        values = example_tensors(self._job.inputs, self._job.shapes.input_shapes(point.sizes))

        def call_model(inputs: list[torch.Tensor]) -> Any:
            args, kwargs = call_arguments(self._job.inputs, inputs)
            result = self._module(*args, **kwargs)
            return returned_tensors(result, self._final.leaves, self._final.structure)

        expected = flows.describe_results(call_model, values, weight_keys)
        actual = flows.describe_results(
            lambda inputs: run_program(self._final, self._weights, inputs), values, weight_keys
        )
        return [actual[index] for index in self._final.outputs] == expected
