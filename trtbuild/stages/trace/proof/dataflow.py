"""Describe a call's computation as operator calls without numbers (its flow). Calls with equal flows have equal
results.

Every operator that a call dispatches is recorded as (operator, arguments). The operator computes nothing, and returns
uninitialized memory of the right size. The number of a value depends only on its operator and arguments. So the order of
independent calls does not count, and neither do dead and repeated calls. If two flows are equal, their results are the
same function of the same weights, constants and inputs, so no numbers need to be compared.

Rules
1. If the flows differ, or if a call cannot be followed (`CannotFollow`, any other error), nothing is proven. Then numbers
   are compared.
2. The call gets ordinary tensors, so that code which checks whether it is being traced takes its normal path. A read of
   numbers (``item``, ``numpy``, ``equal``) ends the recording.
3. The result of an operator that only returns its input (clone, detach, a view of the same shape) is the same value.
   For chains of reshapes only the last shape counts. Strides are not part of a value.
4. An in-place operator is recorded as its out-of-place form, if no other tensor uses its memory. Some calls cannot be
   followed: other in-place writes, writes to a weight or an input, random numbers, reads of memory by strides, and
   operators from outside PyTorch.
5. Weights are identified by their name in the program (`Leaves`), constants by their bytes. Values that depend only on
   constants (masks, positions) are computed, and are constants too. An attention mask of zeros counts as a missing
   mask: libraries build one only while they are traced.
6. A flow does not show an index that is out of range, and the program may have the same wrong index. So constant
   indices are checked. Indices that are elements of an input are followed, because they do not grow with the sizes.
   With other indices the call cannot be followed.
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
from torch.utils._python_dispatch import TorchDispatchMode

from trtbuild.stages.trace.export.checks import is_switched_off
from trtbuild.stages.trace.proof.memory import CannotFollow, Memory, Value, digest, memory_like, where

__all__ = ["CannotFollow", "Flows", "Leaves"]

#: The key of a tensor in the program; None for a constant.
Leaves = Callable[[torch.Tensor], str | None]

#: A result: its number, dtype and shape.
Result = tuple[int, torch.dtype, tuple[int, ...]]

_SAME = frozenset({"clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "expand"})
_RESHAPES = frozenset({"view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze"})
_BY_STRIDE = frozenset({"as_strided", "as_strided_", "set_", "resize_", "stride", "sym_stride", "sym_storage_offset"})
_SIZES = frozenset({"sym_size", "sym_numel", "size", "numel", "dim"})
_NOT_VALUES = frozenset({"memory_format", "pin_memory", "non_blocking"})
#: Tensor methods that read numbers without an operator.
_READS = ("numpy", "tolist", "__array__", "__dlpack__")
#: Operators whose result does not depend on the values of their inputs.
_FILLS = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
#: Operators that fail for some values of an argument with one of the names `_INDICES`.
_INDEXING = frozenset(
    {"embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "index_select", "gather", "take"}
    | {"take_along_dim", "put", "index", "index_put", "index_add", "index_copy", "index_fill", "index_reduce"}
    | {"scatter", "scatter_add", "scatter_reduce", "one_hot", "nll_loss_forward", "nll_loss2d_forward"}
)
_INDICES = frozenset({"index", "indices", "offsets", "target"})
#: Operators that move elements without a change.
_MOVES = _SAME | _RESHAPES | {"slice", "select", "transpose", "permute", "t", "flip", "_to_copy"}
_UNWRITTEN = frozenset({"empty", "empty_strided", "empty_permuted"})


class Flows:
    """Numbers values by their operators and arguments. Results of one `Flows` can be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        #: Number of a reshaped value → the value that was reshaped, and its shape.
        self._origins: dict[int, tuple[int, tuple[int, ...]]] = {}
        #: Uninitialized memory by storage. It is stored here to recognize a tensor that a module has kept.
        self.unwritten: dict[int, torch.Tensor] = {}

    def number(self, *description: Any) -> int:
        """The number of a (hashable) description; equal descriptions have equal numbers."""
        return self._numbers.setdefault(description, len(self._numbers))

    def reshaped(self, number: int, before: tuple[int, ...], shape: tuple[int, ...]) -> int:
        """The number of a value of shape `before` in another shape, its elements in the same order."""
        origin, original = self._origins.get(number, (number, before))
        if original == shape:
            return origin
        result = self.number("reshape", origin, shape)
        self._origins[result] = (origin, original)
        return result

    def results(
        self, call: Callable[[list[torch.Tensor]], Any], inputs: Sequence[torch.Tensor], leaves: Leaves
    ) -> list[Result]:
        """Describe each tensor that ``call(inputs)`` returns. Raises CannotFollow, and the errors of the call."""
        values = [torch.empty_like(value) for value in inputs]
        follower = _Follower(self, leaves)
        for position, value in enumerate(values):
            follower.set_number(value, self.number("input", position, value.dtype, tuple(value.shape)))
        try:
            with _no_reads(), follower:
                returned = call(values)
        finally:
            self.unwritten.update({value.untyped_storage()._cdata: value for value in values} | follower.made())
        tensors = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        return [(follower.value(tensor).number, tensor.dtype, tuple(tensor.shape)) for tensor in tensors]


class _Follower(TorchDispatchMode):
    def __init__(self, flows: Flows, leaves: Leaves) -> None:
        super().__init__()
        self._flows = flows
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self._leaves = leaves
        self._memory: dict[int, Memory] = {}
        #: Numbers of values that consist of elements of one input.
        self._of_inputs: set[int] = set()

    def made(self) -> dict[int, torch.Tensor]:
        """The memory that the call allocated, by storage."""
        return {address: memory.kept for address, memory in self._memory.items() if memory.own}

    def set_number(self, tensor: torch.Tensor, number: int) -> None:
        """Set the number of an argument of the call."""
        self._keep(tensor, Value(number, self._fakes.from_tensor(tensor)), own=False)
        self._of_inputs.add(number)

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor that the call reads or returns. Raises CannotFollow."""
        address, place = where(tensor)
        memory = self._memory.get(address)
        if memory is None:
            return self._leaf(tensor)
        if place not in memory.values:
            raise CannotFollow("a tensor of unknown origin, or whose memory was written to from elsewhere")
        return memory.values[place]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        if (
            func.namespace not in ("aten", "prim", "prims")
            or name in _BY_STRIDE
            or not _is_deterministic(func, args, kwargs)
        ):
            raise CannotFollow(f"{func} is not followed")
        kwargs = {key: value for key, value in kwargs.items() if not self._is_empty_mask(name, key, value)}
        keywords = tuple((key, self._recorded(kwargs[key])) for key in sorted(kwargs.keys() - _NOT_VALUES))
        described = (self._recorded(args), keywords)
        inputs = [self.value(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written_positions = [n for n, argument in enumerate(func._schema.arguments) if _is_written(argument)]
        known = name in _FILLS or (all(value.constant for value in inputs) and name not in _UNWRITTEN)
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        if known and not written_positions and (inputs or not is_view):
            return self._compute(func, args, kwargs, is_view)
        if name.removesuffix("_") in _INDEXING:
            self._check_indices(func, name, args, kwargs)
        fakes = pytree.tree_map_only(torch.Tensor, lambda t: self.value(t).fake, (args, kwargs))
        if written_positions:
            return self._write(func, name, written_positions, described, args, fakes)
        with self._fakes:
            fake_results = func(*fakes[0], **fakes[1])
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(fake_results)):
            if fake_results is not None and name not in _SIZES:
                raise CannotFollow(f"{func} looks at numbers")
            return fake_results
        results = func(*args, **kwargs) if is_view else pytree.tree_map_only(torch.Tensor, memory_like, fake_results)
        pairs = list(zip(pytree.tree_leaves(results), pytree.tree_leaves(fake_results), strict=True))
        for position, (result, fake) in enumerate(pairs):
            if isinstance(fake, torch.Tensor):
                number = self._number(func, name, described, args, position, fake, len(pairs))
                self._keep(result, Value(number, fake), own=not is_view)
                if name in _MOVES and self.value(args[0]).number in self._of_inputs:
                    self._of_inputs.add(number)
        return results

    def _check_indices(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Apply rule 6. Raises CannotFollow, and the operator's error for constant indices that are out of range."""
        arguments = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        index_arguments = pytree.tree_leaves([value for key, value in arguments.items() if key in _INDICES])
        indices = [self.value(index) for index in index_arguments if isinstance(index, torch.Tensor)]
        if name.endswith("_") or not all(index.constant or index.number in self._of_inputs for index in indices):
            raise CannotFollow(f"{func} has indices that could be out of range")
        if indices and all(index.constant for index in indices):
            func(*args, **kwargs)

    def _compute(self, func: Any, args: Any, kwargs: Any, is_view: bool) -> Any:
        """Compute a value that depends only on constants (rule 5)."""
        results = func(*args, **kwargs)
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                number = self._flows.number("constant", digest(result))
                self._keep(result, Value(number, self._fakes.from_tensor(result), constant=True), own=not is_view)
        return results

    def _is_empty_mask(self, operator: str, key: str, value: Any) -> bool:
        if key != "attn_mask" or "attention" not in operator or value is None:
            return key == "attn_mask" and value is None
        return self.value(value).constant and value.is_floating_point() and not bool(value.any())

    def _number(self, func: Any, name: str, described: Any, args: Any, position: int, fake: Any, count: int) -> int:
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and count == 1 and fake.dtype == first.dtype:
            if fake.shape == first.shape and name in _SAME:
                return self.value(first).number
            if name in _RESHAPES:
                return self._flows.reshaped(self.value(first).number, tuple(first.shape), tuple(fake.shape))
        return self._flows.number(str(func), described, position, fake.dtype, tuple(fake.shape))

    def _write(self, func: Any, name: str, written_positions: list[int], described: Any, args: Any, fakes: Any) -> Any:
        if (
            written_positions != [0]
            or not name.endswith("_")
            or name.startswith("_")
            or not isinstance(args[0], torch.Tensor)
        ):
            raise CannotFollow(f"{func} writes in a way that is not followed")
        target = args[0]
        address, place = where(target)
        memory = self._memory.get(address)
        if memory is None or not memory.own or set(memory.values) != {place}:
            raise CannotFollow(f"{func} writes to memory that is not the call's own, or that is seen in other ways too")
        fake = memory.values[place].fake
        before = (fake.dtype, tuple(fake.shape), fake.stride())
        with self._fakes:
            func(*fakes[0], **fakes[1])
        if (fake.dtype, tuple(fake.shape), fake.stride()) != before:
            raise CannotFollow(f"{func} changes the shape of what it writes to")
        overload = func._overloadname
        plain = f"{func.namespace}.{name[:-1]}.{overload}"
        number = self._flows.number(plain, described, 0, fake.dtype, tuple(fake.shape))
        memory.values[place] = Value(number, fake)
        return target

    def _keep(self, tensor: torch.Tensor, value: Value, *, own: bool) -> None:
        address, place = where(tensor)
        memory = self._memory.setdefault(address, Memory(tensor, own))
        memory.values[place] = value

    def _leaf(self, tensor: torch.Tensor) -> Value:
        """The value of a weight or a constant. The call may not write to its memory."""
        if where(tensor)[0] in self._flows.unwritten:
            raise CannotFollow("a tensor that the model has kept from an earlier call")
        leaf = self._leaves(tensor)
        description = ("leaf", leaf) if leaf is not None else ("constant", digest(tensor))
        fake = self._fakes.from_tensor(tensor)
        self._keep(tensor, Value(self._flows.number(*description), fake, constant=leaf is None), own=False)
        return self.value(tensor)

    def _recorded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ("tensor", self.value(value).number)
        if isinstance(value, list | tuple):
            return ("list", *(self._recorded(item) for item in value))
        if value is None or isinstance(value, bool | int | str):
            return (type(value).__name__, value)
        if isinstance(value, float):
            return ("float", struct.pack(">d", value))
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return ("torch", str(value))
        if isinstance(value, torch.device):
            return ("device", value.type)
        raise CannotFollow(f"an argument of type {type(value).__name__}")


def _is_deterministic(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags or is_switched_off(func, args, kwargs)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


@contextlib.contextmanager
def _no_reads() -> Iterator[None]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CannotFollow("the call looks at numbers")

    originals = {name: getattr(torch.Tensor, name) for name in _READS}
    for name in _READS:
        setattr(torch.Tensor, name, refuse)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)
