"""Describe a call of a model by its *flow*: the calls of operators with their arguments, without the elements of tensors.

While the model is called, operators compute nothing: they return uninitialized memory of the right size. (Rules 5 and 6
list the exceptions.) Each value gets a *number*, which depends only on the operator and its arguments. The order of
independent calls does not matter, nor do repeated calls and calls whose results are not used. If two flows are equal, their
results are the same function of the same weights, constants and inputs. Then no elements need to be compared.

Rules
1. If the flows differ, or if a call cannot be followed (`CannotFollow`, any other error), the elements are compared.
2. The model gets ordinary tensors, so code that checks whether it is being traced takes its normal path. If the model reads
   elements (``item``, ``numpy``, ``equal``), the call cannot be followed.
3. Some operators only return their input (clone, detach, a view of the same shape). Their result is the same value. In a
   chain of reshapes only the last shape matters. Strides are not part of a value.
4. An in-place operator is recorded as its form that is not in place, if no other tensor uses the memory. Other in-place
   writes cannot be followed. Writes to a weight or an input, random numbers, reads of memory by strides, and operators
   from outside PyTorch cannot be followed either.
5. Weights are identified by their key in the program (`WeightKeys`), constants by their bytes. Values that depend only on
   constants (masks, positions) are computed, and are constants, too. An attention without a mask has the same flow as one
   with a mask of zeros, because some libraries build such a mask only while they are traced.
6. A flow does not show that an index is out of range, and the program may have the same wrong index. So if all indices of
   a call are constants, they are checked. Indices that are elements of an input need no check, because they do not grow
   with the sizes. If a call has indices of both kinds, none is checked. A call with other indices, or of an in-place
   operator with indices, cannot be followed.
7. The process cannot be used afterwards, because modules may have kept uninitialized tensors. So the recording runs in a
   forked copy of the process (`background`).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from trtbuild.stages.trace.export.checks import is_switched_off
from trtbuild.stages.trace.proof.memory import (
    CannotFollow,
    Memory,
    Value,
    constant_key,
    memory_like,
    storage_and_layout,
)

__all__ = ["CannotFollow", "Flows", "WeightKeys"]

#: A function that returns the key of a weight in the program; None for a constant.
WeightKeys = Callable[[torch.Tensor], str | None]

#: A returned tensor: the number of its value, its dtype and its shape.
Result = tuple[int, torch.dtype, tuple[int, ...]]

#: Operators that only return their input, if its shape and dtype stay the same (rule 3).
_IDENTITY_OPERATORS = frozenset({"clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "expand"})
_RESHAPE_OPERATORS = frozenset({"view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze"})
#: Operators that read or change strides or storages. They cannot be followed (rule 4).
_STRIDE_OPERATORS = frozenset(
    {"as_strided", "as_strided_", "set_", "resize_", "stride", "sym_stride", "sym_storage_offset"}
)
#: Operators that return numbers, but do not read elements.
_SIZE_OPERATORS = frozenset({"sym_size", "sym_numel", "size", "numel", "dim"})
#: Keyword arguments without an effect on the elements.
_IGNORED_ARGUMENTS = frozenset({"memory_format", "pin_memory", "non_blocking"})
#: Tensor methods that read elements without an operator.
_READ_METHODS = ("numpy", "tolist", "__array__", "__dlpack__")
#: Operators whose result does not depend on the elements of their inputs.
_FILL_OPERATORS = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
#: Operators that fail for some values of an argument with one of the names `_INDEX_ARGUMENTS`.
_INDEX_OPERATORS = frozenset(
    {"embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "index_select", "gather", "take"}
    | {"take_along_dim", "put", "index", "index_put", "index_add", "index_copy", "index_fill", "index_reduce"}
    | {"scatter", "scatter_add", "scatter_reduce", "nll_loss_forward", "nll_loss2d_forward"}
)
_INDEX_ARGUMENTS = frozenset({"index", "indices", "offsets", "target"})
#: Operators whose result consists of elements of their input, possibly in another dtype.
_MOVE_OPERATORS = _IDENTITY_OPERATORS | _RESHAPE_OPERATORS | {"slice", "select", "transpose", "permute", "t", "flip"}
_EMPTY_OPERATORS = frozenset({"empty", "empty_strided", "empty_permuted"})


class Flows:
    """Gives numbers to values. Only numbers of the same `Flows` can be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        #: Number of a reshaped value → the number and the shape of the value before all reshapes.
        self._origins: dict[int, tuple[int, tuple[int, ...]]] = {}
        #: The storages that earlier calls have allocated without writing elements: a module may have kept one of them.
        #: Address → a reference to the storage. Because of the reference, no other storage gets this address, although
        #: the memory of the elements can be freed.
        self.unwritten_memory: dict[int, StorageWeakRef] = {}

    def number(self, *description: Any) -> int:
        """The number of a value with this description (hashable). Equal descriptions have equal numbers."""
        return self._numbers.setdefault(description, len(self._numbers))

    def reshaped_number(self, number: int, before: tuple[int, ...], shape: tuple[int, ...]) -> int:
        """The number of value `number` after a reshape from the shape `before` to `shape`."""
        origin, origin_shape = self._origins.get(number, (number, before))
        if origin_shape == shape:
            return origin
        result = self.number("reshape", origin, shape)
        self._origins[result] = (origin, origin_shape)
        return result

    def describe_results(
        self, call: Callable[[list[torch.Tensor]], Any], inputs: Sequence[torch.Tensor], weight_keys: WeightKeys
    ) -> list[Result]:
        """Describe each tensor that ``call(inputs)`` returns. Raises CannotFollow, and the errors of the call."""
        values = [torch.empty_like(value) for value in inputs]
        recorder = _FlowRecorder(self, weight_keys)
        for position, value in enumerate(values):
            recorder.set_number(value, self.number("input", position, value.dtype, tuple(value.shape)))
        try:
            with _refuse_reads(), recorder:
                returned = call(values)
        finally:
            for tensor in (*values, *recorder.unwritten_tensors()):
                reference = StorageWeakRef(tensor.untyped_storage())
                self.unwritten_memory[reference.cdata] = reference
        tensors = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        return [(recorder.value(tensor).number, tensor.dtype, tuple(tensor.shape)) for tensor in tensors]


class _FlowRecorder(TorchDispatchMode):
    """Records the operators of one call, and the value of each tensor."""

    def __init__(self, flows: Flows, weight_keys: WeightKeys) -> None:
        super().__init__()
        self._flows = flows
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._weight_keys = weight_keys
        self._memory: dict[int, Memory] = {}
        #: Numbers of the values whose elements are all elements of one input.
        self._input_element_numbers: set[int] = set()

    def unwritten_tensors(self) -> list[torch.Tensor]:
        """A tensor in each storage that the call has allocated, except storages of constants only, which have elements."""
        return [
            memory.keepalive
            for memory in self._memory.values()
            if memory.is_allocated_by_call and not all(value.is_constant for value in memory.values.values())
        ]

    def set_number(self, tensor: torch.Tensor, number: int) -> None:
        """Set the number of an input of the call."""
        self._set_value(tensor, Value(number, self._fake_mode.from_tensor(tensor)), is_allocated_by_call=False)
        self._input_element_numbers.add(number)

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor that the call reads or returns. Raises CannotFollow."""
        address, layout = storage_and_layout(tensor)
        memory = self._memory.get(address)
        if memory is None:
            return self._leaf_value(tensor)
        if layout not in memory.values:
            raise CannotFollow("a tensor of unknown origin, or whose memory was written to from elsewhere")
        return memory.values[layout]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        if (
            func.namespace not in ("aten", "prim", "prims")
            or name in _STRIDE_OPERATORS
            or not _can_be_followed(func, args, kwargs)
        ):
            raise CannotFollow(f"{func} is not followed")
        kwargs = {key: value for key, value in kwargs.items() if not self._is_mask_without_effect(name, key, value)}
        # describe the call by its arguments, with the numbers of the tensors
        keywords = tuple((key, self._argument_key(kwargs[key])) for key in sorted(kwargs.keys() - _IGNORED_ARGUMENTS))
        description = (self._argument_key(args), keywords)
        inputs = [self.value(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written_positions = [n for n, argument in enumerate(func._schema.arguments) if _is_written(argument)]
        is_constant = name in _FILL_OPERATORS or (
            all(value.is_constant for value in inputs) and name not in _EMPTY_OPERATORS
        )
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        # constants are computed (rule 5)
        if is_constant and not written_positions and (inputs or not is_view):
            return self._compute_constant(func, args, kwargs, is_view)
        if name.removesuffix("_") in _INDEX_OPERATORS:
            self._check_indices(func, name, args, kwargs)
        fake_arguments = pytree.tree_map_only(torch.Tensor, lambda tensor: self.value(tensor).fake, (args, kwargs))
        # in-place operators (rule 4)
        if written_positions:
            return self._write(func, name, written_positions, description, args, fake_arguments)
        with self._fake_mode:
            fake_results = func(*fake_arguments[0], **fake_arguments[1])
        # the result is a size or an element
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(fake_results)):
            if fake_results is not None and name not in _SIZE_OPERATORS:
                raise CannotFollow(f"{func} reads elements")
            return fake_results
        # return a view of the same memory, or uninitialized memory
        results = func(*args, **kwargs) if is_view else pytree.tree_map_only(torch.Tensor, memory_like, fake_results)
        pairs = list(zip(pytree.tree_leaves(results), pytree.tree_leaves(fake_results), strict=True))
        for position, (result, fake) in enumerate(pairs):
            if isinstance(fake, torch.Tensor):
                number = self._result_number(func, name, description, args, position, fake, len(pairs))
                self._set_value(result, Value(number, fake), is_allocated_by_call=not is_view)
                if name in _MOVE_OPERATORS and self.value(args[0]).number in self._input_element_numbers:
                    self._input_element_numbers.add(number)
        return results

    def _check_indices(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Apply rule 6. Raises CannotFollow, and the operator's error for constant indices that are out of range."""
        arguments = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        index_arguments = pytree.tree_leaves([value for key, value in arguments.items() if key in _INDEX_ARGUMENTS])
        indices = [self.value(index) for index in index_arguments if isinstance(index, torch.Tensor)]
        if name.endswith("_") or not all(
            index.is_constant or index.number in self._input_element_numbers for index in indices
        ):
            raise CannotFollow(f"{func} has indices that could be out of range")
        if indices and all(index.is_constant for index in indices):
            func(*args, **kwargs)

    def _compute_constant(self, func: Any, args: Any, kwargs: Any, is_view: bool) -> Any:
        results = func(*args, **kwargs)
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                number = self._flows.number("constant", constant_key(result))
                self._set_value(
                    result,
                    Value(number, self._fake_mode.from_tensor(result), is_constant=True),
                    is_allocated_by_call=not is_view,
                )
        return results

    def _is_mask_without_effect(self, operator: str, key: str, value: Any) -> bool:
        """Whether a keyword argument is an attention mask that changes nothing (rule 5): None or zeros."""
        if key != "attn_mask":
            return False
        if value is None:
            return True
        if "attention" not in operator:
            return False
        return self.value(value).is_constant and value.is_floating_point() and not bool(value.any())

    def _result_number(
        self, func: Any, name: str, description: Any, args: Any, position: int, fake: Any, count: int
    ) -> int:
        """The number of one of `count` results of an operator (rule 3): the result at `position`."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and count == 1 and fake.dtype == first.dtype:
            if fake.shape == first.shape and name in _IDENTITY_OPERATORS:
                return self.value(first).number
            if name in _RESHAPE_OPERATORS:
                return self._flows.reshaped_number(self.value(first).number, tuple(first.shape), tuple(fake.shape))
        return self._flows.number(str(func), description, position, fake.dtype, tuple(fake.shape))

    def _write(
        self, func: Any, name: str, written_positions: list[int], description: Any, args: Any, fake_arguments: Any
    ) -> Any:
        """Record an in-place operator (rule 4). Returns the tensor that it writes to. Raises CannotFollow."""
        if (
            written_positions != [0]
            or not name.endswith("_")
            or name.startswith("_")
            or not isinstance(args[0], torch.Tensor)
        ):
            raise CannotFollow(f"{func} writes in a way that is not followed")
        target_tensor = args[0]
        address, layout = storage_and_layout(target_tensor)
        memory = self._memory.get(address)
        if memory is None or not memory.is_allocated_by_call or set(memory.values) != {layout}:
            raise CannotFollow(f"{func} writes to memory from before the call, or that other tensors use")
        fake = memory.values[layout].fake
        before = (fake.dtype, tuple(fake.shape), fake.stride())
        with self._fake_mode:
            func(*fake_arguments[0], **fake_arguments[1])
        if (fake.dtype, tuple(fake.shape), fake.stride()) != before:
            raise CannotFollow(f"{func} changes the shape of what it writes to")
        overload = func._overloadname
        out_of_place_name = f"{func.namespace}.{name[:-1]}.{overload}"
        number = self._flows.number(out_of_place_name, description, 0, fake.dtype, tuple(fake.shape))
        memory.values[layout] = Value(number, fake)
        return target_tensor

    def _set_value(self, tensor: torch.Tensor, value: Value, *, is_allocated_by_call: bool) -> None:
        address, layout = storage_and_layout(tensor)
        memory = self._memory.setdefault(address, Memory(tensor, is_allocated_by_call))
        memory.values[layout] = value

    def _leaf_value(self, tensor: torch.Tensor) -> Value:
        """The value of a weight or a constant."""
        if storage_and_layout(tensor)[0] in self._flows.unwritten_memory:
            raise CannotFollow("a tensor that the model has kept from an earlier call")
        weight_key = self._weight_keys(tensor)
        description = ("leaf", weight_key) if weight_key is not None else ("constant", constant_key(tensor))
        fake = self._fake_mode.from_tensor(tensor)
        self._set_value(
            tensor,
            Value(self._flows.number(*description), fake, is_constant=weight_key is None),
            is_allocated_by_call=False,
        )
        return self.value(tensor)

    def _argument_key(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ("tensor", self.value(value).number)
        if isinstance(value, list | tuple):
            return ("list", *(self._argument_key(item) for item in value))
        if value is None or isinstance(value, bool | int | str):
            return (type(value).__name__, value)
        if isinstance(value, float):
            return ("float", struct.pack(">d", value))
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return ("torch", str(value))
        if isinstance(value, torch.device):
            return ("device", value.type)
        raise CannotFollow(f"an argument of type {type(value).__name__}")


def _can_be_followed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """False if a call draws random numbers. Also False if the shape of its result, or a number that it returns, depends on
    elements."""
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags or is_switched_off(func, args, kwargs)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


@contextlib.contextmanager
def _refuse_reads() -> Iterator[None]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CannotFollow("the call reads elements")

    originals = {name: getattr(torch.Tensor, name) for name in _READ_METHODS}
    for name in _READ_METHODS:
        setattr(torch.Tensor, name, refuse)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)
