"""Compare a module that has state with its new forward, which takes and returns the state.

All other proofs call the new forward, so they do not notice state that it does not take and return: a reference to a
buffer that `trtbuild.stages.trace.export.state` does not find, a number that the module counts up, or a tensor that it
keeps elsewhere. Here the new forward and the original module each run two calls, one after the other. Outputs and states
must agree.
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
    """Call the new forward and the original module from the same state, and compare their results. Raises SourceError if
    they differ.

    Afterwards the module has its original forward, and its state has changed: do not use it again. `job` has the inputs of
    the state."""
    if not state.buffers:
        return
    inputs = job.inputs[: -len(state.buffers)]
    shapes = min(map(job.shapes.input_shapes, job.points), key=lambda s: sum(map(math.prod, s)))
    calls = [call_arguments(inputs, example_tensors(inputs, shapes[: len(inputs)], SEED + k)) for k in range(_CALLS)]
    values = [buffer.value.clone() for buffer in state.buffers]

    def new_forward(*args: Any, **kwargs: Any) -> Any:
        names = [buffer.input for buffer in state.buffers]
        outputs, values[:] = module(*args, **kwargs, **dict(zip(names, values, strict=True)))
        return outputs

    actual = _results(new_forward, calls, lambda: values)
    state.undo()
    expected = _results(module, calls, state.values)
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True), 1):
        if not _agree(ours, theirs):
            raise SourceError(
                f"call {number} of the model gives other results than a program that takes its state as inputs: the model "
                "also reads something else that a call has changed",
                code="state",
                hint="keep in buffers all that a later call reads, name them in `state`, and use them as self.NAME",
                **job.place("state"),
            )


def _results(
    call: Callable[..., Any], calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], states: Callable[[], list[Any]]
) -> list[list[torch.Tensor] | str]:
    """The outputs and the states after each call, or the type of its error."""
    results: list[list[torch.Tensor] | str] = []
    for args, kwargs in calls:
        try:
            outputs = call(*args, **kwargs)
        except Exception as error:
            results.append(type(error).__name__)
            continue
        found = [*pytree.tree_leaves(outputs), *states()]
        results.append([value.clone() for value in found if isinstance(value, torch.Tensor)])
    return results


def _agree(ours: list[torch.Tensor] | str, theirs: list[torch.Tensor] | str) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours == theirs
    return len(ours) == len(theirs) and all(difference(a, b) is None for a, b in zip(ours, theirs, strict=True))
