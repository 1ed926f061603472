"""Compare a stateful module with its new forward, which takes and returns the state.

The other comparisons call the new forward only. So they do not notice state that the new forward does not take and return.
Examples are a reference to a buffer that `trtbuild.stages.trace.export.state` does not find, a number that the module
counts up, and a tensor that the module keeps elsewhere. Here both forwards run two calls, one after the other. Outputs and
states must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import SEED, call_arguments, example_tensors
from trtbuild.stages.trace.export.state import ModuleState
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.differences import difference

#: The number of calls that are compared.
_CALLS = 2


def prove_state(module: torch.nn.Module, state: ModuleState, job: TraceJob) -> None:
    """Raise SourceError if the results of the new forward differ from those of the original module, from the same state.

    Afterwards the module has its original forward and a changed state: do not use the module again. The last inputs of
    `job` are the buffers of the state."""
    if not state.buffers:
        return
    inputs = job.inputs[: -len(state.buffers)]
    smallest_shapes = min(map(job.shapes.input_shapes, job.points), key=lambda shapes: sum(map(math.prod, shapes)))
    shapes = smallest_shapes[: len(inputs)]
    calls = [call_arguments(inputs, example_tensors(inputs, shapes, SEED + number)) for number in range(_CALLS)]
    values = [buffer.value.clone() for buffer in state.buffers]

    def new_forward(*args: Any, **kwargs: Any) -> Any:
        names = [buffer.input for buffer in state.buffers]
        outputs, values[:] = module(*args, **kwargs, **dict(zip(names, values, strict=True)))
        return outputs

    actual = _results(new_forward, calls, lambda: values)
    state.undo()
    expected = _results(module, calls, state.values)
    for number, (actual_result, expected_result) in enumerate(zip(actual, expected, strict=True), 1):
        if not _agree(actual_result, expected_result):
            raise SourceError(
                f"call {number} of the model gives other results than a program that takes its state as inputs: the model "
                "also reads something else that a call has changed",
                code="state",
                hint="keep in buffers all that a later call reads, name them in `state`, and use them as self.NAME",
                **job.place("state"),
            )


def _results(
    forward: Callable[..., Any],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    states: Callable[[], list[Any]],
) -> list[list[torch.Tensor] | str]:
    """For each of `calls` (arguments of `forward`): the outputs and the states after it, or the type of its error."""
    results: list[list[torch.Tensor] | str] = []
    for args, kwargs in calls:
        try:
            outputs = forward(*args, **kwargs)
        except Exception as error:
            results.append(type(error).__name__)
            continue
        found = [*pytree.tree_leaves(outputs), *states()]
        results.append([value.clone() for value in found if isinstance(value, torch.Tensor)])
    return results


def _agree(actual: list[torch.Tensor] | str, expected: list[torch.Tensor] | str) -> bool:
    """Whether two items of `_results` are errors of one type, or tensors that agree within the tolerances."""
    if isinstance(actual, str) or isinstance(expected, str):
        return actual == expected
    return len(actual) == len(expected) and all(
        difference(*tensors) is None for tensors in zip(actual, expected, strict=True)
    )
