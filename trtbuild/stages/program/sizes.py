"""Compare the sizes that a program declares for its values with the sizes that its operators return.

Rules
1. A *point* is a number for each symbol of the program. The ``val`` of a node is a tensor without data, whose sizes are
   expressions over the symbols. The declared type of a node at a point has the sizes of ``val`` for these numbers.
2. The operators run one by one on meta tensors (without data), from the declared sizes of the inputs. They get numbers
   instead of symbols, so PyTorch cannot replace a symbol by a number.
3. Some calls cannot run here: nested graphs, calls whose results or sizes depend on data, and calls that meta tensors do
   not support, such as operators from outside PyTorch whose code is not loaded, or that read no tensor. Their results get
   the declared types. A size that depends on data is not compared.
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

#: Operator → its replacement on meta tensors. A view may fail on them, because their strides may differ from those of
#: ``val``.
_WITHOUT_STRIDES = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}
_META_DEVICE = torch.device("meta")
_UNKNOWN_VALUE = object()
_DATA_SYMBOL_TYPES = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
#: Stands for a size without a number at the point: one of its symbols has no number, or it divides by zero.
_UNKNOWN_SIZE = -1


@dataclass(frozen=True)
class Difference:
    """A value whose type is not its declared type, or a call that fails. If `only_sizes` is True, the dtypes and ranks are
    those declared."""

    node: torch.fx.Node
    text: str
    point: Point
    only_sizes: bool

    def __str__(self) -> str:
        return f"{target_name(self.node.target)} {self.text}"


def points_of(program: Program, extra_points: Sequence[Sequence[int]] = ()) -> list[Point]:
    """The points at which a program is checked: `extra_points`, the ends of the ranges, and some points between the ends.

    `extra_points` are lists of numbers, in the order of the symbols. All other points depend on the program only.
    """
    symbols = Symbols(program)
    points = [*(tuple(numbers) for numbers in extra_points), *sample_points(symbols.ranges)]
    return [dict(zip(symbols.order, numbers, strict=True)) for numbers in dict.fromkeys(points)]


def first_difference(program: Program, points: Sequence[Point], *, ranks_may_differ: bool = False) -> Difference | None:
    """Find the first value of a program that does not have its declared type.

    With `ranks_may_differ`, a value with another rank or dtype counts only if an output differs, too, at the same point.
    For example, a squeeze returns another rank at a point where the size of the axis is 1.
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
    """The types of the tensors in a node's ``val``, at a point."""
    return PointEvaluator(point).declared(value)


def types_text(types: Sequence[Type]) -> str:
    """Types as text: ``float32[2, 8]``, with ``?`` for a size that depends on data."""
    texts = [
        f"{str(dtype).removeprefix('torch.')}[{', '.join('?' if size is None else str(size) for size in sizes)}]"
        for dtype, sizes in types
    ]
    return ", ".join(texts) or "no tensor"


class PointEvaluator:
    """Evaluates a program at one point. Caches sizes and the results of calls."""

    def __init__(self, point: Point) -> None:
        self._numbers = {symbol: sympy.Integer(number) for symbol, number in point.items()}
        self._sizes: dict[Any, int | None] = {}
        #: Call → result, because layers repeat, and an operator takes up to a millisecond.
        self._results: dict[Any, Any] = {}

    def size(self, size: Any) -> int | None:
        """The number of a size at the point; None if it depends on data; `_UNKNOWN_SIZE` for an unknown symbol, and for a
        division by zero."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._sizes:
            try:
                number = sympy.sympify(expression).xreplace(self._numbers)
            except ZeroDivisionError:
                number = sympy.nan
            if number.is_Integer:
                self._sizes[expression] = int(number)
            elif any(symbol_is_type(symbol, _DATA_SYMBOL_TYPES) for symbol in number.free_symbols):
                self._sizes[expression] = None
            else:
                self._sizes[expression] = _UNKNOWN_SIZE
        return self._sizes[expression]

    def declared(self, value: Any) -> list[Type]:
        """The types of the tensors in a node's ``val``."""
        leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return [(leaf.dtype, tuple(map(self.size, leaf.shape))) for leaf in leaves]

    def walk(self, program: Program) -> Iterator[tuple[torch.fx.Node, list[Type], list[Type] | str]]:
        """Yield each call whose value is known, with its declared types, and with its computed types or the text of its
        error. An error ends the walk.

        A call with several results is not yielded itself. The getitem calls that read its results are yielded. Results that
        the program does not read are not compared, because they differ between kernels.
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
        if is_custom(node.target):
            # without a tensor on the meta device, torch would call the operator's kernel, and not its fake implementation
            if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
                return self._declared_value(node.meta.get("val"))
        elif "device" in kwargs or _is_factory(node.target):
            kwargs = {**kwargs, "device": _META_DEVICE}
        try:
            results = _WITHOUT_STRIDES.get(node.target, node.target)(*args, **kwargs)
            # a fake implementation may name no device, as in `torch.empty(len(x))`
            return pytree.tree_map_only(torch.Tensor, _on_meta, results) if is_custom(node.target) else results
        except NotImplementedError:
            return self._declared_value(node.meta.get("val"))
        except ZeroDivisionError:  # in a factor such as n / (n - 1), on which no size depends
            return self._declared_value(node.meta.get("val"))
        except Exception as error:
            if getattr(node.target, "namespace", "") == "prims":  # these operators fail if a scalar is a meta tensor
                return self._declared_value(node.meta.get("val"))
            message = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return _FailedCall(f"fails: {message}")

    def _depends_on_data(self, value: Any) -> bool:
        return any(None in sizes for _, sizes in self.declared(value))

    def _declared_value(self, value: Any) -> Any:
        """Make a value with the declared types of `value`. `_UNKNOWN_VALUE` if a size has no number at the point, and for a
        SymFloat or a SymBool."""
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
        if None in (*sizes, *strides) or _UNKNOWN_SIZE in (*sizes, *strides):
            return _UNKNOWN_VALUE
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=_META_DEVICE)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_META_DEVICE)


def _type_key(value: Any) -> Any:
    """A key for an argument. Calls of an operator whose arguments have equal keys return equal types."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, list | tuple):
        return tuple(map(_type_key, value))
    if isinstance(value, dict):
        return tuple((name, _type_key(part)) for name, part in value.items())
    return type(value), value


@functools.cache
def _needs_data(target: Any) -> bool:
    """Whether an operator is a nested graph, or returns results or sizes that depend on values."""
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
    """Whether an operator creates a tensor from numbers only, on a device that is an argument."""
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
    """Return `computed` with None for each size that is None in `declared`."""
    if len(declared) != len(computed):
        return list(computed)
    types: list[Type] = []
    for (_, declared_sizes), (dtype, sizes) in zip(declared, computed, strict=True):
        if len(declared_sizes) == len(sizes):
            sizes = tuple(None if known is None else size for known, size in zip(declared_sizes, sizes, strict=True))
        types.append((dtype, sizes))
    return types
