"""Check a call's arguments and bind them to the model's inputs. The decision for a set of shapes is cached.

Rules
1. Arguments are passed in the same way as to the original ``forward``: positional inputs in order, keyword inputs by name.
   A positional input may also be passed by name. Names come from the package.
2. Nothing is converted automatically: another dtype, rank or device is an error. A tensor that is not contiguous is
   accepted. Engines copy it, because they read rows in order (`runs`). A tensor whose memory does not contain its values is
   copied here, before its address is used (`Arrays.plain`).
3. All axes of a dim have one size, a multiple of its unit, and one profile must allow all sizes.
4. For known shapes only dtypes and devices are checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtbuild.core.packages.package_index import PackageIndex, PackedTensor, size_text
from trtbuild.core.values.expressions import Expression, evaluate, symbols_of
from trtbuild.core.values.nearest import nearest
from trtbuild.errors import CallRefused
from trtbuild.runtime.calls.call import Array, Call
from trtbuild.runtime.packages.choice import choose_profile, out_of_range

#: The largest number of cached sets of shapes. Then the cache is cleared, so that memory stays bounded.
_MOST_CACHED = 4096


class Arrays(Protocol):
    """The tensors of a runtime and their device."""

    #: The types of this runtime's own tensors.
    own: frozenset[type]
    #: A valid argument has this `device`.
    device: Any
    #: Whether outputs of parts that PyTorch computes must be contiguous if engines read them.
    contiguous: bool

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Wrap `value` as a tensor of this runtime, without a copy. `name` is for errors. Raises CallRefused."""
        ...

    def is_odd(self, array: Array) -> bool:
        """Whether the memory of one of this runtime's own arrays perhaps does not contain its values. Then `plain` must be
        called."""
        ...

    def plain(self, array: Array, name: str) -> Array:
        """Return `array`, or a copy whose memory contains its values. Raises CallRefused if such a copy cannot be
        created."""
        ...

    def packed(self, array: Array, stream: int) -> Array:
        """Return a new contiguous copy."""
        ...

    def dtype(self, name: str) -> object:
        """Return the `dtype` that tensors of this element type have."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of checking the shapes of a call: the number of the profile, and each symbol's size in the graph's
    units."""

    profile: int
    sizes: tuple[int, ...]
    #: Stream → the `Call` for the parts.
    calls: dict[int, Call] = field(default_factory=dict, compare=False)


#: The inputs, the decision for their shapes, and whether an input was adopted.
Bound = tuple[Sequence[Array], Decision, bool]


class Arguments:
    """Binds and checks the arguments of calls of one package."""

    def __init__(self, index: PackageIndex, arrays: Arrays) -> None:
        self._index = index
        self._inputs = index.inputs
        self._arrays = arrays
        self._positional = [number for number, entry in enumerate(index.inputs) if not entry.keyword]
        self._numbers = {entry.name: number for number, entry in enumerate(index.inputs)}
        #: The number of inputs if all are positional, otherwise -1.
        self._all_positional = len(index.inputs) if len(self._positional) == len(index.inputs) else -1
        #: Names in the package's order, in which positional inputs come first.
        self._names = [entry.name for entry in index.inputs]
        self._in_order = self._positional == list(range(len(self._positional)))
        self._own, self._device, self._is_odd = arrays.own, arrays.device, arrays.is_odd
        self._dtypes = tuple(arrays.dtype(entry.dtype) for entry in index.inputs)
        self._known: dict[tuple[Any, ...], Decision] = {}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], stream: int) -> Bound:
        """Return the inputs in the package's order, the decision for their shapes, and whether an input was adopted. Raises
        CallRefused."""
        if not kwargs and len(args) == self._all_positional:
            values = args
        else:
            values = self._in_package_order(args, kwargs)
        own, adopted = self._own, False
        for value in values:
            if type(value) not in own:
                values, adopted = self._adopted(values, stream), True
                break
        decision = self._known.get(tuple([value.shape for value in values]))
        if decision is None:
            return *self._check(values), adopted
        device, is_odd = self._device, self._is_odd
        for value, dtype in zip(values, self._dtypes):  # noqa: B905 - as many as there are inputs, and this is hot
            if value.dtype != dtype or value.device != device or is_odd(value):
                return *self._check(values), adopted
        return values, decision, adopted

    def explain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise CallRefused if an argument cannot be read. It is called after torch has raised another error."""
        for name, value in zip(self._names, self._in_package_order(args, kwargs), strict=True):
            if isinstance(value, tuple(self._own)):
                self._arrays.plain(value, f"input {name!r}")

    # -- binding arguments to inputs

    def _in_package_order(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[object]:
        count = len(args)
        if self._in_order and count <= len(self._positional) and count + len(kwargs) == len(self._names):
            try:
                return [*args, *[kwargs[name] for name in self._names[count:]]]
            except KeyError:
                pass
        return self._ordered(args, kwargs)

    def _ordered(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The same order, with a check of every name. Raises CallRefused."""
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

    def _adopted(self, values: Sequence[object], stream: int) -> list[Array]:
        adopt, own = self._arrays.adopt, self._own
        return [
            value if type(value) in own else adopt(value, f"input {entry.name!r}", stream)
            for entry, value in zip(self._inputs, values, strict=True)
        ]

    def _check(self, values: Sequence[Array]) -> tuple[Sequence[Array], Decision]:
        arrays = [self._arrays.plain(array, f"input {name!r}") for name, array in zip(self._names, values, strict=True)]
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
                    f"input {entry.name!r} has the shape {_shape(shape)}, but must have {len(entry.shape)} axes",
                    hint=f"its shape is {self._symbolic(entry)}",
                )
        decision = self._decide(shapes)
        if len(self._known) >= _MOST_CACHED:
            self._known.clear()
        self._known[tuple([array.shape for array in arrays])] = decision
        return arrays, decision

    def _decide(self, shapes: Sequence[tuple[int, ...]]) -> Decision:
        sizes = self._sizes(shapes)
        profile = choose_profile(self._index.profiles, shapes)
        if profile is None:
            raise CallRefused(
                out_of_range(self._index.profiles, shapes, self._axis),
                hint="pass a shape inside a profile, or build the model again with a wider profile",
            )
        return Decision(profile, sizes)

    def _sizes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The size of each symbol in the graph's units."""
        solved: dict[int, tuple[int, int, int]] = {}  # symbol → its size, and the input and axis that it comes from
        unsolved: list[tuple[int, int, Expression, int]] = []
        for number, (entry, shape) in enumerate(zip(self._inputs, shapes, strict=True)):
            for axis, (expression, size) in enumerate(zip(entry.shape, shape, strict=True)):
                if isinstance(expression, int):
                    if size != expression:
                        raise CallRefused(
                            f"{self._axis(number, axis)} is {size}, and must be {expression}",
                            hint=f"the shape of {entry.name!r} is {self._symbolic(entry)}",
                        )
                    continue
                symbol, value = self._solve(number, axis, expression, size)
                if symbol is None:
                    unsolved.append((number, axis, expression, size))
                    continue
                known = solved.setdefault(symbol, (value, number, axis))
                if known[0] != value:
                    dim = self._index.dims[symbol]
                    raise CallRefused(
                        f"dim {dim.name!r} is {shapes[known[1]][known[2]]} in {self._place(known[1], known[2])} and "
                        f"{size} in {self._place(number, axis)}",
                        hint="all axes of a dim must have the same size",
                    )
        sizes = tuple(solved[symbol][0] if symbol in solved else 0 for symbol in range(len(self._index.dims)))
        for number, axis, expression, size in unsolved:
            if evaluate(expression, sizes) != size:
                raise CallRefused(
                    f"{self._axis(number, axis)} is {size}, and must be {evaluate(expression, sizes)}",
                    hint="this size follows from the sizes of the other axes",
                )
        return sizes

    def _solve(self, number: int, axis: int, expression: Expression, size: int) -> tuple[int | None, int]:
        """The symbol of an axis, and its size in units. The symbol is None if the expression has several symbols, or is not
        linear."""
        symbols = symbols_of(expression)
        if len(symbols) != 1:
            return None, 0
        (symbol,) = symbols
        values = [0] * len(self._index.dims)
        base = evaluate(expression, values)
        values[symbol] = 1
        factor = evaluate(expression, values) - base
        if factor <= 0:
            return None, 0
        value, rest = divmod(size - base, factor)
        values[symbol] = value
        if not rest and evaluate(expression, values) != size:
            return None, 0
        if rest or value < 0:
            below = max(0, size - base) // factor * factor + base
            nearest_sizes = f"{below} or {below + factor}" if below > base else f"{below + factor}"
            raise CallRefused(
                f"{self._axis(number, axis)} is {size}, and must be a multiple of {factor}"
                + (f" and {base}" if base else ""),
                hint=f"use {nearest_sizes}",
            )
        return symbol, value

    # -- names

    def _axis(self, number: int, axis: int) -> str:
        """Input, dim and axis, for an error message."""
        entry = self._inputs[number]
        dims = [self._index.dims[symbol].name for symbol in sorted(symbols_of(entry.shape[axis]))]
        dim = f"dim {' and '.join(map(repr, dims))} (axis {axis})" if dims else f"axis {axis}"
        return f"input {entry.name!r}, {dim}"

    def _place(self, number: int, axis: int) -> str:
        return f"{self._inputs[number].name}.{axis}"

    def _symbolic(self, entry: PackedTensor) -> str:
        """A shape with the names of its dims: ``(batch, 3, height)``."""
        return _shape(size_text(size, self._index.dims) for size in entry.shape)


def _shape(sizes: Any) -> str:
    listed = [str(size) for size in sizes]
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"
