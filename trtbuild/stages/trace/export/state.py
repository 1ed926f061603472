"""Turn the state of a module into inputs and outputs of its forward.

The manifest's field ``state:`` names buffers that a call reads and writes, such as the keys and values of a cache.

Rules
1. Each state buffer is an input after all declared inputs. Its value after the call is an output after all other outputs.
   So the traced program writes to nothing, and the proof compares new states as it compares outputs.
2. During a call, the buffer is a copy of its input. Objects of Python may refer to the same tensor (a cache of transformers
   does). Each such attribute, list item or dict value gets the copy, too.
3. The module has no such buffers any more. So torch.export does not see them, and they are not weights. During a call,
   their copies are plain attributes.
4. A buffer has the same dtype and shape after the call. The call must write to it.
5. The proof and later comparisons use random states. A buffer that has no negative values in the module has none there,
   because it may be a variance, a counter or an index.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input
from trtbuild.core.values.module_paths import advice_for_unmatched
from trtbuild.core.values.value_ranges import TYPE_LIMITS, InvalidRange, ValueRange, value_range
from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.export.arranging import ArrangedProgram
from trtbuild.stages.trace.export.weights import ModuleWeights
from trtbuild.stages.trace.job import TraceJob

#: Objects of these types do not refer to tensors of a model.
_OPAQUE_TYPES = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str, bytes, int, float, torch.Tensor, torch.dtype,
    torch.device, torch.Generator,
)  # fmt: skip
#: Operators that return their argument unchanged.
_COPIES = frozenset((torch.ops.aten.clone.default, torch.ops.aten.alias.default))


@dataclass(frozen=True)
class StateBuffer:
    """A buffer that a call reads and writes. `input` is the name of its keyword argument in the new forward.

    `value` is its value in the module, with which the state of a package begins. `range` is the range of random values."""

    name: str
    input: str
    value: torch.Tensor
    persistent: bool
    range: ValueRange | None


@dataclass(frozen=True)
class _Place:
    """A place that refers to a tensor: the item `key` of `container`."""

    container: MutableMapping[Any, Any] | MutableSequence[Any]
    key: Any

    def get(self) -> Any:
        return self.container[self.key]

    def set(self, value: Any) -> None:
        self.container[self.key] = value


@dataclass
class ModuleState:
    """The state buffers of a module, in the order of their names in the module. `torn` is the name of a buffer that a call
    has replaced at one of several places only; empty if there is none."""

    buffers: tuple[StateBuffer, ...]
    torn: str = ""
    _places: list[list[_Place]] = field(default_factory=list)

    @contextlib.contextmanager
    def holding(self, values: Sequence[torch.Tensor]) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Let the module's buffers be copies of `values`. Yields a function that returns their present values."""
        for places, value in zip(self._places, values, strict=True):
            copy = value.clone()
            for place in places:
                place.set(copy)
        try:
            yield self._present_values
        finally:
            self.remove_from_module()

    def remove_from_module(self) -> None:
        """Remove the buffers from the module, and let the other objects refer to their first values (rule 3)."""
        for buffer, places in zip(self.buffers, self._places, strict=True):
            del places[0].container[places[0].key]
            for place in places[1:]:
                place.set(buffer.value)

    def _present_values(self) -> list[torch.Tensor]:
        for buffer, places in zip(self.buffers, self._places, strict=True):
            if len({id(place.get()) for place in places}) > 1:
                self.torn = buffer.name
        return [places[0].get() for places in self._places]


def declare_state(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> tuple[ModuleState, TraceJob]:
    """Give `module` a forward that takes and returns its state. Returns the state, and the job with its inputs.

    `weights` are the weights of the module, the state buffers included. Raises SourceError for a pattern that names no
    buffer, and for a buffer that shares its memory with another weight."""
    if not job.state:
        return ModuleState(()), job
    buffers = dict(module.named_buffers())
    names = [name for name in buffers if any(fnmatchcase(name, pattern) for pattern in job.state)]
    for pattern in job.state:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise _unmatched_error(pattern, module, buffers, job)
    if module._forward_hooks or module._forward_pre_hooks:
        raise SourceError(
            "a model with `state` cannot have forward hooks of its own: they would see the state among its arguments",
            code="state",
            hint="call the function of the hook in forward",
            **job.place("state"),
        )
    saved_names = set(weights.saved_names)
    taken = {entry.name for entry in job.inputs} | set(inspect.signature(module.forward).parameters)
    state = ModuleState(
        tuple(
            StateBuffer(name, _input_name(name, taken), buffers[name], name in saved_names, _range_of(buffers[name]))
            for name in names
        )
    )
    for buffer in state.buffers:
        _refuse_shared_memory(buffer, weights, job)
        state._places.append(_places_of(buffer, module))
    _replace_forward(module, state)
    inputs = tuple(
        Input(buffer.input, dtype_name(buffer.value.dtype), keyword=True, range=buffer.range)
        for buffer in state.buffers
    )
    shapes = ShapePlan(job.shapes.symbols, (*job.shapes.shapes, *(tuple(b.value.shape) for b in state.buffers)))
    return state, replace(job, inputs=(*job.inputs, *inputs), shapes=shapes)


def refuse_state(arranged: ArrangedProgram, state: ModuleState, job: TraceJob) -> None:
    """Raise SourceError if the program does not write to a state buffer, or changes its dtype or shape (rule 4)."""
    if state.torn:
        raise SourceError(
            f"the model replaces the state {state.torn!r} in one place, but other objects still refer to the old tensor",
            code="state",
            hint="write into the tensor: `buffer.copy_(new)`",
            **job.place("state"),
        )
    count = len(state.buffers)
    if not count:
        return
    inputs = arranged.program.input_nodes[-count:]
    outputs = [arranged.program.output_nodes[index] for index in arranged.outputs[-count:]]
    for buffer, old, new in zip(state.buffers, inputs, outputs, strict=True):
        value, declared = new.meta["val"], buffer.value
        if value.dtype is not declared.dtype or list(value.shape) != list(declared.shape):
            raise SourceError(
                f"the state {buffer.name!r} is {_type_text(declared)} before a call and {_type_text(value)} after it",
                code="state",
                hint="write into a buffer of a fixed size, or pass a growing cache as an input and return it",
                **job.place("state"),
            )
        while new.target in _COPIES:
            new = new.all_input_nodes[0]
        if new is old:
            raise SourceError(
                f"the model does not write to the buffer {buffer.name!r}, which `state` names",
                code="state",
                hint="remove it from `state`: a buffer that is only read is a weight",
                **job.place("state"),
            )


def _replace_forward(module: torch.nn.Module, state: ModuleState) -> None:
    original = module.forward
    names = [buffer.input for buffer in state.buffers]

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        with state.holding([kwargs.pop(name) for name in names]) as present_values:
            outputs = original(*args, **kwargs)
            return outputs, present_values()

    signature = inspect.signature(original)
    parameters = list(signature.parameters.values())
    end = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters[end:end] = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    module.forward = forward


def _places_of(buffer: StateBuffer, module: torch.nn.Module) -> list[_Place]:
    """All places from which `module` reaches the tensor of `buffer`. The first is an attribute of the buffer's module. It
    replaces the buffer, because torch.export looks at each write to a buffer, but not at plain attributes."""
    path, _, name = buffer.name.rpartition(".")
    owner = module.get_submodule(path)
    del owner._buffers[name]
    return [_Place(owner.__dict__, name), *_places_in(module, buffer.value)]


def _places_in(root: object, tensor: torch.Tensor) -> Iterator[_Place]:
    visited: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in visited or isinstance(found, _OPAQUE_TYPES):
            continue
        visited.add(id(found))
        if isinstance(found, MutableMapping):
            items = list(found.items())
        elif isinstance(found, MutableSequence):
            items = list(enumerate(found))
        elif isinstance(found, tuple | set | frozenset):
            waiting += found
            continue
        else:
            waiting.append(getattr(found, "__dict__", None))
            continue
        for key, value in items:
            if value is tensor:
                yield _Place(found, key)
            else:
                waiting.append(value)


def _refuse_shared_memory(buffer: StateBuffer, weights: ModuleWeights, job: TraceJob) -> None:
    weight = weights.find(buffer.value)
    others = [name for name in (weight.names if weight is not None else ()) if name != buffer.name]
    if others:
        raise SourceError(
            f"the state {buffer.name!r} and {others[0]!r} are one tensor",
            code="state",
            hint="register a copy: `self.register_buffer(name, tensor.clone())`",
            **job.place("state"),
        )


def _unmatched_error(
    pattern: str, module: torch.nn.Module, buffers: dict[str, torch.Tensor], job: TraceJob
) -> SourceError:
    if pattern in dict(module.named_parameters()):
        problem, hint = f"state: {pattern!r} is a parameter of the model", "register it as a buffer"
    elif not buffers:
        problem, hint = f"state: no buffer of the model matches {pattern!r}", "the model has no buffers"
    else:
        problem, hint = f"state: no buffer of the model matches {pattern!r}", advice_for_unmatched(pattern, buffers)
    return SourceError(problem, code="state", hint=hint.replace("module paths", "buffers"), **job.place("state"))


def _input_name(buffer: str, taken: set[str]) -> str:
    name = "state_" + re.sub(r"\W", "_", buffer)
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _range_of(tensor: torch.Tensor) -> ValueRange | None:
    """The range of random values for a state: none is negative if no value of `tensor` is (rule 5)."""
    dtype = dtype_name(tensor.dtype)
    if dtype not in TYPE_LIMITS or not tensor.numel() or not bool((tensor >= 0).all()):
        return None
    largest = tensor.max().item()
    ends = value_range(dtype, 0, max(1, largest)) if math.isfinite(largest) else None
    return ends if isinstance(ends, tuple) and not isinstance(ends, InvalidRange) else None


def _type_text(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {[*tensor.shape]}"
