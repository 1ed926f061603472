"""Turn the state of a module into inputs and outputs of its forward.

The manifest's field ``state:`` names buffers that a call reads and writes, such as the keys and values of a cache.

Rules
1. Each state buffer is an input after all declared inputs. Its value after the call is an output after all other outputs.
   So the traced program writes to nothing, and the proof compares new states as it compares outputs.
2. During a call, a copy of the state's input replaces the buffer. Other Python objects may refer to the same tensor (a
   cache of transformers does). The copy replaces the tensor in each such attribute, list item and dict value, too.
3. The buffers become plain attributes of their modules. So they are not weights, and torch.export's hook for
   assignments to buffers does not run for them.
4. A call must write to each state buffer, and must not change its dtype or shape.
5. Comparisons use random states. If the values of a buffer are finite and not negative, its random values are not
   negative, either, because the buffer may be a variance, a counter or an index.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
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
from trtbuild.stages.trace.export.finalizing import FinalProgram
from trtbuild.stages.trace.export.weights import ModuleWeights
from trtbuild.stages.trace.job import TraceJob

#: Objects of these types are not searched for tensors.
_OPAQUE_TYPES = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str, bytes, int, float, torch.Tensor, torch.dtype,
    torch.device, torch.Generator,
)  # fmt: skip
#: Operators whose result equals their argument.
_COPIES = frozenset((torch.ops.aten.clone.default, torch.ops.aten.alias.default))


@dataclass(frozen=True)
class StateBuffer:
    """A buffer that a call reads and writes. `input` is the name of its keyword argument in the new forward.

    `value` is its value in the module: the first state of a package. `range` is the range of its random values; None if
    these are drawn as for an input without a range."""

    name: str
    input: str
    value: torch.Tensor
    persistent: bool
    range: ValueRange | None


@dataclass(frozen=True)
class _Place:
    """A place that refers to the tensor of a buffer: the item `key` of `container`."""

    buffer: StateBuffer
    container: MutableMapping[Any, Any] | MutableSequence[Any]
    key: Any


class ModuleState:
    """The state buffers of a module, in the order of ``named_buffers``."""

    def __init__(self, module: torch.nn.Module, buffers: Sequence[StateBuffer]) -> None:
        self.buffers = tuple(buffers)
        #: The name of a buffer that a call has replaced in only some of the places that refer to it; "" if there is no such
        #: buffer.
        self.partly_replaced = ""
        self._module = module
        self._original_forward = module.forward

    def declare(self) -> None:
        """Give the module a forward that takes and returns the state, and turn its buffers into attributes (rule 3)."""
        for buffer in self.buffers:
            path, _, name = buffer.name.rpartition(".")
            owner = self._module.get_submodule(path)
            del owner._buffers[name]
            owner.__dict__[name] = buffer.value
        self._module.forward = self._new_forward()

    def undo(self) -> None:
        """Give the module its buffers and its forward back."""
        for buffer in self.buffers:
            path, _, name = buffer.name.rpartition(".")
            owner = self._module.get_submodule(path)
            del owner.__dict__[name]
            owner._buffers[name] = buffer.value
        self._module.forward = self._original_forward

    def values(self) -> list[Any]:
        """The present tensors of the buffers."""
        return [getattr(self._module.get_submodule(path), name) for path, name in self._paths()]

    def _paths(self) -> Iterator[tuple[str, str]]:
        for buffer in self.buffers:
            path, _, name = buffer.name.rpartition(".")
            yield path, name

    def _new_forward(self) -> Callable[..., Any]:
        original = self._original_forward
        names = [buffer.input for buffer in self.buffers]

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
            with self._with_state([kwargs.pop(name) for name in names]):
                outputs = original(*args, **kwargs)
                return outputs, self.values()

        signature = inspect.signature(original)
        parameters = list(signature.parameters.values())
        has_kwargs = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        end = len(parameters) - 1 if has_kwargs else len(parameters)
        parameters[end:end] = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return forward

    @contextlib.contextmanager
    def _with_state(self, values: Sequence[torch.Tensor]) -> Iterator[None]:
        """Replace the state buffers by copies of `values` inside the block (rule 2)."""
        copies = {buffer.name: value.clone() for buffer, value in zip(self.buffers, values, strict=True)}
        # searched in each call: torch.export copies containers, so the model may not use those of an earlier call
        places = [*_places_in(self._module, self.buffers)]
        for place in places:
            place.container[place.key] = copies[place.buffer.name]
        try:
            yield
            for place in places:
                expected = self.values()[self.buffers.index(place.buffer)]
                if place.container[place.key] is not expected:
                    self.partly_replaced = place.buffer.name
        finally:
            for place in places:
                place.container[place.key] = place.buffer.value


def declare_state(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> tuple[ModuleState, TraceJob]:
    """Give `module` a forward that takes and returns its state. Returns the state, and the job with the state's inputs.

    `weights` must contain the state buffers. Raises SourceError for a pattern that matches no buffer, for a buffer whose
    tensor the module also has under another name, and for a module with forward hooks."""
    if not job.state:
        return ModuleState(module, ()), job
    buffers = dict(module.named_buffers())
    names = [name for name in buffers if any(fnmatchcase(name, pattern) for pattern in job.state)]
    for pattern in job.state:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise _unmatched_error(pattern, module, buffers, job)
    if module._forward_hooks or module._forward_pre_hooks:
        raise SourceError(
            "a model with `state` cannot have forward hooks: they would see the state among its arguments",
            code="state",
            hint="call the function of the hook in forward",
            **job.place("state"),
        )
    saved_names = set(weights.saved_names)
    taken = {entry.name for entry in job.inputs} | set(inspect.signature(module.forward).parameters)
    state = ModuleState(
        module,
        [
            StateBuffer(name, _input_name(name, taken), buffers[name], name in saved_names, _range_of(buffers[name]))
            for name in names
        ],
    )
    for buffer in state.buffers:
        _refuse_shared_memory(buffer, weights, job)
    state.declare()
    inputs = tuple(
        Input(buffer.input, dtype_name(buffer.value.dtype), keyword=True, range=buffer.range)
        for buffer in state.buffers
    )
    shapes = ShapePlan(job.shapes.symbols, (*job.shapes.shapes, *(tuple(b.value.shape) for b in state.buffers)))
    return state, replace(job, inputs=(*job.inputs, *inputs), shapes=shapes)


def refuse_state(final: FinalProgram, state: ModuleState, job: TraceJob) -> None:
    """Raise SourceError if the model breaks rule 4, or replaces a buffer in only some of the places that refer to it."""
    if state.partly_replaced:
        raise SourceError(
            f"the model replaces the state {state.partly_replaced!r} in one place, but other objects still refer to the "
            "old tensor",
            code="state",
            hint="write into the tensor: `buffer.copy_(new)`",
            **job.place("state"),
        )
    count = len(state.buffers)
    if not count:
        return
    inputs = final.program.input_nodes[-count:]
    outputs = [final.program.output_nodes[index] for index in final.outputs[-count:]]
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


def _places_in(root: object, buffers: Sequence[StateBuffer]) -> Iterator[_Place]:
    """Yield the attributes, list items and dict values below `root` that are the tensor of one of `buffers`.

    Objects inside tuples and sets are searched, too. Items of a tuple or set cannot be replaced, so they are not
    yielded."""
    buffers_by_id = {id(buffer.value): buffer for buffer in buffers}
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
            if id(value) in buffers_by_id:
                yield _Place(buffers_by_id[id(value)], found, key)
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
    """The range of random values for a state (rule 5): from 0 to the largest value of `tensor`, and at least to 1.
    None if rule 5 asks for no range, or if the type has no ranges."""
    dtype = dtype_name(tensor.dtype)
    if dtype not in TYPE_LIMITS or not tensor.numel() or not bool((tensor >= 0).all()):
        return None
    largest = tensor.max().item()
    ends = value_range(dtype, 0, max(1, largest)) if math.isfinite(largest) else None
    return ends if isinstance(ends, tuple) and not isinstance(ends, InvalidRange) else None


def _type_text(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {[*tensor.shape]}"
