"""Check a call's arguments and bind them to the model's inputs. The result for a set of shapes is cached.

A *dim* is a dynamic dimension of the model, such as the batch size. Several axes may share one dim.

Rules
1. Arguments are passed as to the original ``forward``: positional inputs in order, keyword inputs by name. A positional
   input may also be passed by name.
2. Another dtype, rank or device is an error: nothing is converted. A tensor that is not contiguous is accepted. It is
   copied later, before an engine reads it (`trtbuild.runtime.engines.runs`). A tensor whose memory has its values
   with the opposite sign (``Tensor.is_neg`` of torch) is copied here (`ArrayOperations.materialize`).
3. All axes of a dim must have the same size, which must be a multiple of the dim's `multiple_of`. One profile must allow
   the sizes of all dims.
4. If the shapes were checked in an earlier call, only dtypes, devices and memory (rule 2) are checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtbuild.core.packages.package_index import PackageIndex, PackedTensor, size_text
from trtbuild.core.values.expressions import Expression, evaluate, symbols_of
from trtbuild.core.values.nearest import nearest
from trtbuild.errors import CallRefused, PackageDamaged
from trtbuild.runtime.calls.call import Array, Call
from trtbuild.runtime.packages.choice import choose_profile, out_of_range_text

#: The largest number of cached sets of shapes. When it is reached, the cache is cleared.
_MOST_CACHED = 4096


class ArrayOperations(Protocol):
    """The operations on the arrays of one device: torch tensors, or `DeviceArray`s. The `name` of an array is for error
    messages."""

    #: The types of arrays that are used as they are. `adopt` wraps arrays of other types.
    own_types: frozenset[type]
    #: The attribute `device` of a valid argument.
    device: Any
    #: Whether outputs of PyTorch must be made contiguous, because engines read the arrays of this device.
    requires_contiguous: bool

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Wrap an array of another library. It is copied only if its memory cannot be used. Raises CallRefused."""
        ...

    def needs_materializing(self, array: Array) -> bool:
        """Whether the memory of `array` may differ from its values. If so, `materialize` must be called."""
        ...

    def materialize(self, array: Array, name: str) -> Array:
        """Return `array` if its memory contains its values, otherwise a copy whose memory contains them. Raises CallRefused
        if such a copy cannot be created."""
        ...

    def contiguous_copy(self, array: Array, stream: int) -> Array:
        """Return a new contiguous copy."""
        ...

    def dtype(self, name: str) -> object:
        """Return the attribute `dtype` of arrays of the element type `name`, such as ``float32``."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of checking the shapes of a call: the number of the chosen profile, and `sizes`.

    `sizes` has one number for each dim: its size divided by its `multiple_of`."""

    profile: int
    sizes: tuple[int, ...]
    #: Stream → the `Call` object for calls with these shapes on this stream.
    calls: dict[int, Call] = field(default_factory=dict, compare=False)


#: The inputs, the decision for their shapes, and whether `ArrayOperations.adopt` has wrapped an input.
BoundArguments = tuple[Sequence[Array], Decision, bool]


class Arguments:
    """Binds and checks the arguments of calls of one package."""

    def __init__(self, index: PackageIndex, arrays: ArrayOperations) -> None:
        self._index = index
        self._inputs = index.inputs
        self._arrays = arrays
        self._positional = [number for number, entry in enumerate(index.inputs) if not entry.keyword]
        self._numbers = {entry.name: number for number, entry in enumerate(index.inputs)}
        #: The number of inputs if all are positional, otherwise -1.
        self._count_if_all_positional = len(index.inputs) if len(self._positional) == len(index.inputs) else -1
        self._names = [entry.name for entry in index.inputs]
        #: Whether all positional inputs come before the keyword inputs.
        self._in_order = self._positional == list(range(len(self._positional)))
        self._own_types, self._device, self._needs_materializing = (
            arrays.own_types,
            arrays.device,
            arrays.needs_materializing,
        )
        self._dtypes = tuple(arrays.dtype(entry.dtype) for entry in index.inputs)
        self._decisions: dict[tuple[Any, ...], Decision] = {}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], stream: int) -> BoundArguments:
        """Check the arguments, and return them in the package's order, with the decision for their shapes. Raises
        CallRefused."""
        if not kwargs and len(args) == self._count_if_all_positional:
            values = args
        else:
            values = self._in_package_order(args, kwargs)
        own_types, adopted = self._own_types, False
        for value in values:
            if type(value) not in own_types:
                values, adopted = self._adopt_all(values, stream), True
                break
        decision = self._decisions.get(tuple([value.shape for value in values]))
        if decision is None:
            return *self._check(values), adopted
        device, needs_materializing = self._device, self._needs_materializing
        for value, dtype in zip(values, self._dtypes):  # noqa: B905 - the lengths are equal, and each call runs this
            if value.dtype != dtype or value.device != device or needs_materializing(value):
                return *self._check(values), adopted
        return values, decision, adopted

    def explain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise CallRefused if an argument is a tensor without a shape or a memory address. Call this after a RuntimeError
        of torch, because such a tensor may be the cause."""
        for name, value in zip(self._names, self._in_package_order(args, kwargs), strict=True):
            if isinstance(value, tuple(self._own_types)):
                self._arrays.materialize(value, f"input {name!r}")

    # -- binding arguments to inputs

    def _in_package_order(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[object]:
        count = len(args)
        if self._in_order and count <= len(self._positional) and count + len(kwargs) == len(self._names):
            try:
                return [*args, *[kwargs[name] for name in self._names[count:]]]
            except KeyError:
                pass  # `_checked_in_package_order` finds the wrong name
        return self._checked_in_package_order(args, kwargs)

    def _checked_in_package_order(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """Check every name, and return the arguments in the package's order. Raises CallRefused."""
        values: list[object] = [None] * len(self._inputs)
        if len(args) > len(self._positional):
            raise CallRefused(
                f"{len(args)} positional tensors were passed, but the model takes {len(self._positional)}",
                hint=self._signature(),
            )
        for number, value in zip(self._positional, args, strict=False):
            values[number] = value
        passed = set(self._positional[: len(args)])
        for name, value in kwargs.items():
            number = self._numbers.get(name, -1)
            if number < 0:
                similar = nearest(name, self._numbers)
                suggestion = f"did you mean {similar!r}? " if similar else ""
                raise CallRefused(f"the model has no input {name!r}", hint=suggestion + self._signature())
            if number in passed:
                raise CallRefused(f"input {name!r} was passed by position and by name", hint=self._signature())
            passed.add(number)
            values[number] = value
        missing = [entry.name for number, entry in enumerate(self._inputs) if number not in passed]
        if missing:
            quoted = ", ".join(map(repr, missing))
            inputs = f"inputs {quoted} are" if len(missing) > 1 else f"input {quoted} is"
            raise CallRefused(f"{inputs} missing", hint=self._signature())
        return values

    def _signature(self) -> str:
        positional = [self._inputs[number].name for number in self._positional]
        named = [entry.name for entry in self._inputs if entry.keyword]
        return f"the model takes ({', '.join([*positional, *(['*'] if named else []), *named])})"

    # -- checking

    def _adopt_all(self, values: Sequence[object], stream: int) -> list[Array]:
        adopt, own_types = self._arrays.adopt, self._own_types
        return [
            value if type(value) in own_types else adopt(value, f"input {entry.name!r}", stream)
            for entry, value in zip(self._inputs, values, strict=True)
        ]

    def _check(self, values: Sequence[Array]) -> tuple[Sequence[Array], Decision]:
        arrays = [
            self._arrays.materialize(array, f"input {name!r}") for name, array in zip(self._names, values, strict=True)
        ]
        shapes = [tuple(array.shape) for array in arrays]
        for entry, array, shape, dtype in zip(self._inputs, arrays, shapes, self._dtypes, strict=True):
            if array.device != self._device:
                raise CallRefused(
                    f"input {entry.name!r} is on {array.device}, but the model runs on {self._device}",
                    hint=f'move it there: {entry.name}.to("{self._device}")',
                )
            if array.dtype != dtype:
                actual = str(array.dtype).removeprefix("torch.")
                raise CallRefused(
                    f"input {entry.name!r} has dtype {actual}, but must have {entry.dtype}",
                    hint=f"cast the tensor to {entry.dtype}; a package takes the dtypes that it was built for",
                )
            if len(shape) != len(entry.shape):
                raise CallRefused(
                    f"input {entry.name!r} has the shape {_shape_text(shape)}, but must have {len(entry.shape)} axes",
                    hint=f"its shape is {self._symbolic_shape(entry)}",
                )
        decision = self._decide(shapes)
        if len(self._decisions) >= _MOST_CACHED:
            self._decisions.clear()
        self._decisions[tuple([array.shape for array in arrays])] = decision
        return arrays, decision

    def _decide(self, shapes: Sequence[tuple[int, ...]]) -> Decision:
        try:
            values = self._symbol_values(shapes)
        except CallRefused:  # also a ValueError
            raise
        except ValueError as error:  # a size expression without a value: the reader of the index knows no sizes
            raise PackageDamaged(
                f"the shapes of the inputs of {self._index.model!r} cannot be used: {error}",
                hint="build the package again",
            ) from None
        profile = choose_profile(self._index.profiles, shapes)
        if profile is None:
            raise CallRefused(
                out_of_range_text(self._index.profiles, shapes, self._axis_and_dim_text),
                hint="pass a shape inside a profile, or build the model again with a wider profile",
            )
        return Decision(profile, values)

    def _symbol_values(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return `Decision.sizes`. Raises CallRefused if a size contradicts the package's shapes.

        In these shapes, a symbol is the variable of a dim. Its value is one of `Decision.sizes`."""
        values: dict[int, int] = {}  # symbol → its value
        places: dict[int, tuple[int, int]] = {}  # symbol → the input and the axis from which its value follows
        unsolved: list[tuple[int, int, Expression, int]] = []
        for number, (entry, shape) in enumerate(zip(self._inputs, shapes, strict=True)):
            for axis, (expression, size) in enumerate(zip(entry.shape, shape, strict=True)):
                if isinstance(expression, int):
                    if size != expression:
                        raise CallRefused(
                            f"{self._axis_and_dim_text(number, axis)} is {size}, and must be {expression}",
                            hint=f"the shape of {entry.name!r} is {self._symbolic_shape(entry)}",
                        )
                    continue
                symbol, value = self._solve(number, axis, expression, size)
                if symbol is None:
                    unsolved.append((number, axis, expression, size))
                    continue
                first_number, first_axis = places.setdefault(symbol, (number, axis))
                if values.setdefault(symbol, value) != value:
                    dim = self._index.dims[symbol]
                    raise CallRefused(
                        f"dim {dim.name!r} is {shapes[first_number][first_axis]} in "
                        f"{self._axis_text(first_number, first_axis)} and {size} in {self._axis_text(number, axis)}",
                        hint="all axes of a dim must have the same size",
                    )
        all_values = tuple(values.get(symbol, 0) for symbol in range(len(self._index.dims)))
        for number, axis, expression, size in unsolved:
            expected = evaluate(expression, all_values)
            if size != expected:
                raise CallRefused(
                    f"{self._axis_and_dim_text(number, axis)} is {size}, and must be {expected}",
                    hint="this size follows from the sizes of the other axes",
                )
        return all_values

    def _solve(self, number: int, axis: int, expression: Expression, size: int) -> tuple[int | None, int]:
        """Return the symbol in `expression`, and the value for which the expression is `size`: ``2 * s0 + 1`` and 7 give
        (0, 3).

        The symbol is None if the expression is not linear in one symbol with a positive factor. Raises CallRefused if no
        value from 0 on gives `size`.
        """
        symbols = symbols_of(expression)
        if len(symbols) != 1:
            return None, 0
        (symbol,) = symbols
        values = [0] * len(self._index.dims)
        base = evaluate(expression, values)
        values[symbol] = 1
        factor = evaluate(expression, values) - base  # a linear expression is factor * symbol + base
        if factor <= 0:
            return None, 0
        value, remainder = divmod(size - base, factor)
        values[symbol] = value
        if remainder == 0 and evaluate(expression, values) != size:
            return None, 0  # not linear
        if remainder or value < 0:
            below = max(0, size - base) // factor * factor + base
            nearest_sizes = f"{below} or {below + factor}" if below > base else f"{below + factor}"
            raise CallRefused(
                f"{self._axis_and_dim_text(number, axis)} is {size}, and must be {_sizes_text(factor, base)}",
                hint=f"use {nearest_sizes}",
            )
        return symbol, value

    # -- names

    def _axis_and_dim_text(self, number: int, axis: int) -> str:
        """Name an axis in an error message: ``input 'x', dim 'batch' (axis 0)``."""
        entry = self._inputs[number]
        dims = [self._index.dims[symbol].name for symbol in sorted(symbols_of(entry.shape[axis]))]
        dim = f"dim {' and '.join(map(repr, dims))} (axis {axis})" if dims else f"axis {axis}"
        return f"input {entry.name!r}, {dim}"

    def _axis_text(self, number: int, axis: int) -> str:
        return f"{self._inputs[number].name}.{axis}"

    def _symbolic_shape(self, entry: PackedTensor) -> str:
        """Return a shape as text with the names of its dims: ``(batch, 3, height)``."""
        return _shape_text(size_text(size, self._index.dims) for size in entry.shape)


def _sizes_text(factor: int, base: int) -> str:
    """Describe the sizes factor * n + base that are at least 0, for n = 0, 1, ..., in words."""
    if base == 0:
        return f"a multiple of {factor}"
    smallest = base if base > 0 else base % factor
    return f"{smallest} or more" + (f", in steps of {factor}" if factor > 1 else "")


def _shape_text(sizes: Any) -> str:
    listed = [str(size) for size in sizes]
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"
