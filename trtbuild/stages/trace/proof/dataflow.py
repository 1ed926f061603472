"""What a call computes, as operator calls without numbers: two calls with equal flows give equal results.

Every operator that a call dispatches is written down as (operator, what it takes), and instead of computing it gives
memory of the right size that nobody wrote. Values are numbered by what they are made of, so the order of independent
calls, dead ones and repeated ones do not count. Of two equal flows the results are the same function of the same
weights, constants and inputs: no numbers need be compared.

Rules
1. Unequal flows, or a call that cannot be followed (`CannotFollow`, any other error), say nothing: numbers decide then.
2. What the call sees are ordinary tensors: code that asks whether it is being traced must not be compared with itself.
   So whatever looks at numbers (``item``, ``numpy``, ``equal``) ends the following.
3. An operator that only hands its input on (clone, detach, a view of the same shape) is its input; views that only
   reshape are the shape that they lead to. Strides are no part of a value.
4. An operator that writes in place is the same operator out of place, if nothing else looks at the memory that it writes
   to; else the call cannot be followed. Nor can one that writes to a weight or an input, draws random numbers, looks at
   memory by strides, or calls an operator from outside PyTorch.
5. Weights are told apart by what they are to the program (`Leaves`), constants by their bytes; what is made of
   constants alone (masks, positions) is computed and is a constant too. An attention mask of zeros is none: libraries
   build one where they are traced, and leave it out where they are not.
6. An index beyond its table is an error that no flow shows: a call that has one may be equal to a program that has it
   too. So indices are looked at where they are constants; followed where they are elements of the inputs, which the
   sizes do not make larger; and else the call cannot be followed.
7. The process is of no use afterwards: modules may have kept tensors that hold nothing (`aside` is where it runs).
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

#: What a tensor is to the program, None where it is a constant.
Leaves = Callable[[torch.Tensor], str | None]

#: A result: its number, dtype and shape.
Result = tuple[int, torch.dtype, tuple[int, ...]]

_SAME = frozenset({"clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "expand"})
_RESHAPES = frozenset({"view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze"})
_BY_STRIDE = frozenset({"as_strided", "as_strided_", "set_", "resize_", "stride", "sym_stride", "sym_storage_offset"})
_SIZES = frozenset({"sym_size", "sym_numel", "size", "numel", "dim"})
_NOT_VALUES = frozenset({"memory_format", "pin_memory", "non_blocking"})
#: What looks at numbers without asking an operator.
_LOOKS = ("numpy", "tolist", "__array__", "__dlpack__")
#: Operators whose result does not depend on the numbers that they are given.
_FILLS = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
#: Operators that fail by the numbers of an argument with one of the names `_INDICES`.
_INDEXING = frozenset(
    {"embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "index_select", "gather", "take"}
    | {"take_along_dim", "put", "index", "index_put", "index_add", "index_copy", "index_fill", "index_reduce"}
    | {"scatter", "scatter_add", "scatter_reduce", "one_hot", "nll_loss_forward", "nll_loss2d_forward"}
)
_INDICES = frozenset({"index", "indices", "offsets", "target"})
#: Operators that hand elements on as they are.
_MOVES = _SAME | _RESHAPES | {"slice", "select", "transpose", "permute", "t", "flip", "_to_copy"}
_UNWRITTEN = frozenset({"empty", "empty_strided", "empty_permuted"})


class Flows:
    """Numbers values by what they are made of. Results that one `Flows` gives can be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        #: Number of a reshaped value → the value that was reshaped, and its shape.
        self._origins: dict[int, tuple[int, tuple[int, ...]]] = {}
        #: Memory that nobody wrote, by storage: kept, so that what a module has kept of it is known for what it is.
        self.unwritten: dict[int, torch.Tensor] = {}

    def number(self, *made_of: Any) -> int:
        """Equal for equal (hashable) descriptions."""
        return self._numbers.setdefault(made_of, len(self._numbers))

    def reshaped(self, number: int, before: tuple[int, ...], shape: tuple[int, ...]) -> int:
        """The number of a value of shape `before` in another shape, its elements in the same order."""
        origin, original = self._origins.get(number, (number, before))
        if original == shape:
            return origin
        found = self.number("reshape", origin, shape)
        self._origins[found] = (origin, original)
        return found

    def results(
        self, call: Callable[[list[torch.Tensor]], Any], inputs: Sequence[torch.Tensor], leaves: Leaves
    ) -> list[Result]:
        """What each tensor that ``call(inputs)`` returns is. Raises CannotFollow, and whatever the call raises."""
        values = [torch.empty_like(value) for value in inputs]
        follower = _Follower(self, leaves)
        for position, value in enumerate(values):
            follower.give(value, self.number("input", position, value.dtype, tuple(value.shape)))
        try:
            with _nothing_is_looked_at(), follower:
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
        """The memory that was made while the call was followed, by storage."""
        return {address: memory.kept for address, memory in self._memory.items() if memory.own}

    def give(self, tensor: torch.Tensor, number: int) -> None:
        """Say what a tensor that the call is handed is."""
        self._keep(tensor, Value(number, self._fakes.from_tensor(tensor)), own=False)
        self._of_inputs.add(number)

    def value(self, tensor: torch.Tensor) -> Value:
        """What a tensor is that the call takes or returns. Raises CannotFollow."""
        address, place = where(tensor)
        memory = self._memory.get(address)
        if memory is None:
            return self._leaf(tensor)
        if place not in memory.values:
            raise CannotFollow("a tensor that nothing made, or whose memory was written to from elsewhere")
        return memory.values[place]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        if func.namespace not in ("aten", "prim", "prims") or name in _BY_STRIDE or not _is_plain(func, args, kwargs):
            raise CannotFollow(f"{func} is not followed")
        kwargs = {key: value for key, value in kwargs.items() if not self._is_no_mask(name, key, value)}
        told = tuple((key, self._told(kwargs[key])) for key in sorted(kwargs.keys() - _NOT_VALUES))
        described = (self._told(args), told)
        given = [self.value(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [n for n, argument in enumerate(func._schema.arguments) if _is_written(argument)]
        known = name in _FILLS or (all(value.constant for value in given) and name not in _UNWRITTEN)
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        if known and not written and (given or not is_view):
            return self._compute(func, args, kwargs, is_view)
        if name.removesuffix("_") in _INDEXING:
            self._check_indices(func, name, args, kwargs)
        fakes = pytree.tree_map_only(torch.Tensor, lambda t: self.value(t).fake, (args, kwargs))
        if written:
            return self._write(func, name, written, described, args, fakes)
        with self._fakes:
            made = func(*fakes[0], **fakes[1])
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(made)):
            if made is not None and name not in _SIZES:
                raise CannotFollow(f"{func} looks at numbers")
            return made
        results = func(*args, **kwargs) if is_view else pytree.tree_map_only(torch.Tensor, memory_like, made)
        pairs = list(zip(pytree.tree_leaves(results), pytree.tree_leaves(made), strict=True))
        for position, (result, fake) in enumerate(pairs):
            if isinstance(fake, torch.Tensor):
                number = self._number(func, name, described, args, position, fake, len(pairs))
                self._keep(result, Value(number, fake), own=not is_view)
                if name in _MOVES and self.value(args[0]).number in self._of_inputs:
                    self._of_inputs.add(number)
        return results

    def _check_indices(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Rule 6. Raises CannotFollow, and what the operator raises for constant indices that are out of range."""
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        given = pytree.tree_leaves([value for key, value in named.items() if key in _INDICES])
        indices = [self.value(index) for index in given if isinstance(index, torch.Tensor)]
        if name.endswith("_") or not all(index.constant or index.number in self._of_inputs for index in indices):
            raise CannotFollow(f"{func} has indices that could be out of range")
        if indices and all(index.constant for index in indices):
            func(*args, **kwargs)

    def _compute(self, func: Any, args: Any, kwargs: Any, is_view: bool) -> Any:
        """Rule 5: what is made of constants."""
        results = func(*args, **kwargs)
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                number = self._flows.number("constant", digest(result))
                self._keep(result, Value(number, self._fakes.from_tensor(result), constant=True), own=not is_view)
        return results

    def _is_no_mask(self, operator: str, key: str, value: Any) -> bool:
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

    def _write(self, func: Any, name: str, written: list[int], described: Any, args: Any, fakes: Any) -> Any:
        if written != [0] or not name.endswith("_") or name.startswith("_") or not isinstance(args[0], torch.Tensor):
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
        """A weight or a constant. Its memory is nobody's to write to."""
        if where(tensor)[0] in self._flows.unwritten:
            raise CannotFollow("a tensor that the model has kept of an earlier call")
        leaf = self._leaves(tensor)
        made_of = ("leaf", leaf) if leaf is not None else ("constant", digest(tensor))
        fake = self._fakes.from_tensor(tensor)
        self._keep(tensor, Value(self._flows.number(*made_of), fake, constant=leaf is None), own=False)
        return self.value(tensor)

    def _told(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ("tensor", self.value(value).number)
        if isinstance(value, list | tuple):
            return ("list", *(self._told(item) for item in value))
        if value is None or isinstance(value, bool | int | str):
            return (type(value).__name__, value)
        if isinstance(value, float):
            return ("float", struct.pack(">d", value))
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return ("torch", str(value))
        if isinstance(value, torch.device):
            return ("device", value.type)
        raise CannotFollow(f"an argument of type {type(value).__name__}")


def _is_plain(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags or is_switched_off(func, args, kwargs)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


@contextlib.contextmanager
def _nothing_is_looked_at() -> Iterator[None]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CannotFollow("the call looks at numbers")

    originals = {name: getattr(torch.Tensor, name) for name in _LOOKS}
    for name in _LOOKS:
        setattr(torch.Tensor, name, refuse)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)
