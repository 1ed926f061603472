"""Compute the sizes of a program's values at one point in two ways: from the ``val`` of each node, and by running the
operators. (``val`` is a fake tensor, whose sizes are expressions over the symbols.)

Rules
1. A *point* gives every symbol of the program a number. The declared type of a value at a point is the type of its
   ``val``, with these numbers.
2. The operators run one by one on meta tensors (no data), from the declared sizes of the inputs. The operators get
   numbers instead of symbols, so PyTorch cannot specialize a symbol.
3. Some calls cannot run here: a nested graph, a call whose sizes depend on data, and a call of an operator from outside
   PyTorch whose code is not loaded. Their results get the declared types. A size that depends on data is not compared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from trtbuild.core.model.sample_points import sample_points
from trtbuild.stages.program.custom_operators import is_custom
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import target_name

#: Symbol → its number at a point.
Point = Mapping[sympy.Symbol, int]

#: A tensor's dtype and sizes; None for a size that depends on data.
Type = tuple[torch.dtype, tuple[int | None, ...]]

#: Operator → its replacement on meta tensors. Their strides may differ from those of ``val``, and a view may then fail.
_WITHOUT_STRIDES = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}
#: The device of tensors without data.
_META_DEVICE = torch.device("meta")
_UNKNOWN_VALUE = object()
_DATA_SYMBOL_TYPES = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
#: Stands for a size whose symbol is not in an input's shape.
_UNKNOWN_SIZE = -1


@dataclass(frozen=True)
class Difference:
    """A value whose type is not its declared type. `text` describes the difference. `only_sizes` is True if only sizes
    differ: dtypes and ranks are equal."""

    node: torch.fx.Node
    text: str
    point: Point
    only_sizes: bool

    def __str__(self) -> str:
        return f"{target_name(self.node.target)} {self.text}"


def points_of(program: Program, extra_points: Sequence[Sequence[int]] = ()) -> list[Point]:
    """The points at which a program is checked: `extra_points`, and those of `sample_points` at the ends of the ranges and
    between them.

    `extra_points` are lists of numbers, in the order of the symbols. All other points depend on the program only.
    """
    symbols = Symbols(program)
    points = [*(tuple(numbers) for numbers in extra_points), *sample_points(symbols.ranges)]
    return [dict(zip(symbols.order, numbers, strict=True)) for numbers in dict.fromkeys(points)]


def first_difference(program: Program, points: Sequence[Point], *, ranks_may_differ: bool = False) -> Difference | None:
    """Find the first value of a program whose type is not its declared type; None if there is no such value.

    With `ranks_may_differ`, a value that differs in more than its sizes counts only if an output differs, too, at the same
    point. For example, the result of a squeeze may have another rank at some points, and so may the values computed
    from it.
    """
    for point in points:
        first: Difference | None = None
        evaluator = PointEvaluator(point)
        returned = set(program.output_nodes)
        for node, declared, computed in evaluator.walk(program):
            if declared == computed:
                continue
            if first is None:
                first = Difference(
                    node,
                    _difference_text(declared, computed),
                    point,
                    only_sizes=_differ_in_sizes_only(declared, computed),
                )
                if first.only_sizes or not ranks_may_differ:
                    return first
            if node in returned:
                return first
    return None


def _difference_text(declared: Sequence[Type], computed: Sequence[Type] | str) -> str:
    if isinstance(computed, str):
        return computed
    return f"gives {types_text(computed)} where the program has {types_text(declared)}"


def _differ_in_sizes_only(declared: Sequence[Type], computed: Sequence[Type] | str) -> bool:
    def ranks(types: Sequence[Type]) -> list[tuple[torch.dtype, int]]:
        return [(dtype, len(sizes)) for dtype, sizes in types]

    return not isinstance(computed, str) and ranks(declared) == ranks(computed)


def declared_types_at(value: Any, point: Point) -> list[Type]:
    """The types of the tensors that a node's ``val`` consists of, at a point."""
    return PointEvaluator(point).declared(value)


def types_text(types: Sequence[Type]) -> str:
    """Types as text: ``float32[2, 8]``, with ``?`` for a size that depends on data."""
    texts = [
        f"{str(dtype).removeprefix('torch.')}[{', '.join('?' if size is None else str(size) for size in sizes)}]"
        for dtype, sizes in types
    ]
    return ", ".join(texts) or "no tensor"


class PointEvaluator:
    """Evaluates a program at one point. It caches sizes and the results of calls."""

    def __init__(self, point: Point) -> None:
        self._numbers = {symbol: sympy.Integer(number) for symbol, number in point.items()}
        self._sizes: dict[Any, int | None] = {}
        #: Call → result. Layers repeat, and running an operator takes up to a millisecond.
        self._results: dict[Any, Any] = {}

    def size(self, size: Any) -> int | None:
        """The number of a size at the point; None if it depends on data; `_UNKNOWN_SIZE` for an unknown symbol."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._sizes:
            number = sympy.sympify(expression).xreplace(self._numbers)
            if number.is_Integer:
                self._sizes[expression] = int(number)
            elif any(symbol_is_type(symbol, _DATA_SYMBOL_TYPES) for symbol in number.free_symbols):
                self._sizes[expression] = None
            else:
                self._sizes[expression] = _UNKNOWN_SIZE
        return self._sizes[expression]

    def declared(self, value: Any) -> list[Type]:
        """The types of the tensors that a node's ``val`` consists of."""
        leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return [(leaf.dtype, tuple(map(self.size, leaf.shape))) for leaf in leaves]

    def walk(self, program: Program) -> Iterator[tuple[torch.fx.Node, list[Type], list[Type] | str]]:
        """Yield each call whose value is known, with its declared types, and with its computed types or the text of its
        error. An error ends the walk.

        For a call with several results, only the results that the program reads are compared, because kernels differ in the
        results that nothing reads.
        """
        values: dict[torch.fx.Node, Any] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._declared_value(node.meta.get("val"))
            elif node.op == "call_function":
                with torch.no_grad():
                    values[node] = self._run(node, values)
                declared = self.declared(node.meta.get("val"))
                if isinstance(values[node], _FailedCall):
                    yield node, declared, values[node].text
                    return
                has_one_result = not isinstance(values[node], list | tuple)
                if values[node] is not _UNKNOWN_VALUE and has_one_result:
                    yield node, declared, _without_unknown_sizes(declared, self.declared(values[node]))

    def _run(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
        needed = [values.get(source, _UNKNOWN_VALUE) for source in node.all_input_nodes]
        needs_data = _needs_data(node.target) and not _indexes_by_numbers(node)
        needs_data = needs_data or (is_custom(node.target) and self._depends_on_data(node.meta.get("val")))
        if needs_data or any(value is _UNKNOWN_VALUE for value in needed):
            return self._declared_value(node.meta.get("val"))
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        call = (node.target, _type_key(args), _type_key(kwargs))
        if call not in self._results:
            self._results[call] = self._run_operator(node, args, kwargs)
        return self._results[call]

    def _run_operator(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        if "device" in kwargs or _is_factory(node.target):
            kwargs = {**kwargs, "device": _META_DEVICE}
        try:
            return _WITHOUT_STRIDES.get(node.target, node.target)(*args, **kwargs)
        except NotImplementedError:
            return self._declared_value(node.meta.get("val"))
        except ZeroDivisionError:  # a factor such as n / (n - 1); sizes do not depend on it
            return self._declared_value(node.meta.get("val"))
        except Exception as error:
            if getattr(node.target, "namespace", "") == "prims":  # they fail if a scalar is a meta tensor
                return self._declared_value(node.meta.get("val"))
            message = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return _FailedCall(f"fails: {message}")

    def _depends_on_data(self, value: Any) -> bool:
        return any(None in sizes for _, sizes in self.declared(value))

    def _declared_value(self, value: Any) -> Any:
        """Make a value with the declared types of `value` at the point; `_UNKNOWN_VALUE` if a size depends on data."""
        if isinstance(value, list | tuple):
            parts = [self._declared_value(part) for part in value]
            return _UNKNOWN_VALUE if any(part is _UNKNOWN_VALUE for part in parts) else type(value)(parts)
        if isinstance(value, torch.SymInt):
            size = self.size(value)
            return _UNKNOWN_VALUE if size is None else size
        if not isinstance(value, torch.Tensor):
            return _UNKNOWN_VALUE if isinstance(value, torch.SymFloat | torch.SymBool) else value
        sizes = [self.size(size) for size in value.shape]
        strides = [self.size(step) for step in value.stride()] if value.layout is torch.strided else []
        if None in sizes or None in strides or _UNKNOWN_SIZE in sizes:
            return _UNKNOWN_VALUE
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=_META_DEVICE)


def _type_key(value: Any) -> Any:
    """A key for an argument: equal keys lead to equal types of results."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, list | tuple):
        return tuple(map(_type_key, value))
    if isinstance(value, dict):
        return tuple((name, _type_key(part)) for name, part in value.items())
    return type(value), value


@functools.cache
def _needs_data(target: Any) -> bool:
    """Whether an operator needs data to run: a nested graph, or an operator whose result or sizes depend on values."""
    tags = getattr(target, "tags", ())
    return (
        isinstance(target, torch._ops.HigherOrderOperator)
        or torch.Tag.data_dependent_output in tags
        or torch.Tag.dynamic_output_shape in tags
    )


def _indexes_by_numbers(node: torch.fx.Node) -> bool:
    """Whether a call indexes by integers, without a mask. The sizes of such a call do not depend on data."""
    masks = (torch.bool, torch.uint8)
    return node.target is torch.ops.aten.index.Tensor and not any(
        index.meta["val"].dtype in masks for index in node.args[1] if index is not None
    )


@functools.cache
def _is_factory(target: Any) -> bool:
    """Whether an operator creates a tensor from numbers only. Such an operator has the device as an argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = target._schema.arguments
    return any(entry.name == "device" for entry in arguments) and not any(
        "Tensor" in str(entry.type) for entry in arguments
    )


@dataclass(frozen=True)
class _FailedCall:
    text: str


def _without_unknown_sizes(declared: Sequence[Type], computed: Sequence[Type]) -> list[Type]:
    """Return `computed` with None for each size that depends on data in `declared`."""
    if len(declared) != len(computed):
        return list(computed)
    types: list[Type] = []
    for (_, declared_sizes), (dtype, sizes) in zip(declared, computed, strict=True):
        if len(declared_sizes) == len(sizes):
            sizes = tuple(None if known is None else size for known, size in zip(declared_sizes, sizes, strict=True))
        types.append((dtype, sizes))
    return types
