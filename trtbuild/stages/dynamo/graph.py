"""Read a graph of TorchDynamo: its inputs, its outputs and the ranges of its sizes.

Rules
1. Parameters and buffers, which dynamo lifts to inputs, become weights again.
2. Dynamo passes sizes as extra arguments; an engine reads them from its tensors. A symbol is *open* if it is an integer
   argument and not the size of an axis, or if it has no upper bound. Each value of an open symbol gets a separate engine.
3. The range of a dim comes from dynamo. It usually starts at 2 or later, because dynamo treats 0 and 1 as special.
   `Dim.marked_low` is the lower bound that the user gave to `mark_dynamic`. If this bound is 1, the trace also compares
   the program with the module at size 1.
4. Engines return tensors only. `CapturedGraph.assemble_outputs` adds the outputs that are sizes or constants.
5. An output may be a view of an argument, and later code of the program may write to it. An engine's output has its own
   memory. So the program gets a view of the argument instead. PyTorch runs the graph if the view cannot be made from
   the argument by `as_strided`, for example because of another dtype. It also runs the graph if several arguments share
   the memory, because they may not share it in a later call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

#: An upper bound of at least this value means that there is no bound.
_UNBOUNDED = 2**31 - 1

_QUOTED_NAME = re.compile(r"\['([^']+)'\]")


class NotSupported(Exception):
    """No engine can be built for a graph; the text is the reason."""


@dataclass(frozen=True)
class Dim:
    """A symbol for dynamic sizes of a graph, and the bounds of its values."""

    symbol: sympy.Symbol
    low: int
    high: int | None  # None: no bound
    #: The smallest value that the user's calls of `mark_dynamic` allow; None if no call has a lower bound.
    marked_low: int | None
    #: (index of the input in `CapturedGraph.tensors`, axis, factor). The size of the axis is `factor` times the symbol.
    axes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class TensorInput:
    """A tensor that the caller passes."""

    position: int  # its index among the graph's arguments
    name: str
    dtype: torch.dtype
    shape: tuple[Any, ...]  # ints and sympy expressions


@dataclass(frozen=True)
class WeightInput:
    """A tensor that belongs to a module."""

    position: int  # its index among the graph's arguments
    name: str
    is_parameter: bool


@dataclass(frozen=True)
class ViewOutput:
    """An output that is a view of an argument of the graph. The numbers may be expressions."""

    position: int  # the index of the argument
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any  # from the first element of the argument

    def of(self, arguments: Sequence[Any], sizes: Mapping[sympy.Symbol, int]) -> torch.Tensor:
        """Return the view of the argument in a call with these sizes."""
        shape, strides, (offset,) = (
            [int(number.subs(sizes)) for number in numbers] for numbers in (self.shape, self.strides, (self.offset,))
        )
        argument: torch.Tensor = arguments[self.position]
        return argument.as_strided(shape, strides, argument.storage_offset() + offset)


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that dynamo captured."""

    module: torch.fx.GraphModule
    tensors: tuple[TensorInput, ...]
    weights: tuple[WeightInput, ...]
    #: The integer arguments: (position, expression).
    scalars: tuple[tuple[int, sympy.Expr], ...]
    dims: tuple[Dim, ...]
    #: For each output: ("tensor", its index among the tensors that the converted module returns), ("argument", the index of
    #: the argument that it is), ("view", a `ViewOutput`), ("size", the expression) or ("constant", the value).
    outputs: tuple[tuple[str, Any], ...]

    @property
    def open_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The symbols that must be numbers before an engine can be built (rule 2)."""
        bounded_symbols = {dim.symbol for dim in self.dims if dim.high is not None}
        used_symbols = {s for entry in self.tensors for size in entry.shape for s in getattr(size, "free_symbols", ())}
        used_symbols |= {symbol for _, expr in self.scalars for symbol in expr.free_symbols}
        return tuple(sorted(used_symbols - bounded_symbols, key=str))

    def sizes(self, arguments: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """Symbol → its value in a call of the graph with `arguments`."""
        sizes: dict[sympy.Symbol, int] = {}
        for position, expr in self.scalars:
            if expr.is_Symbol:
                sizes[expr] = int(arguments[position])
        for dim in self.dims:
            number, axis, factor = dim.axes[0]
            sizes[dim.symbol] = int(arguments[self.tensors[number].position].shape[axis]) // factor
        return sizes

    def assemble_outputs(
        self, tensors: Sequence[torch.Tensor], arguments: Sequence[Any], sizes: Mapping[sympy.Symbol, int]
    ) -> list[Any]:
        """Return the graph's outputs: `tensors`, sizes and constants (rule 4), and views of `arguments` (rule 5)."""
        outputs: list[Any] = []
        for kind, value in self.outputs:
            if kind == "tensor":
                outputs.append(tensors[value])
            elif kind == "argument":
                outputs.append(arguments[value])
            elif kind == "view":
                outputs.append(value.of(arguments, sizes))
            else:
                outputs.append(int(value.subs(sizes)) if kind == "size" else value)
        return outputs


def read_graph(module: torch.fx.GraphModule) -> CapturedGraph:
    """Read a graph of dynamo. Raises NotSupported if no engine can be built for it."""
    tensors: list[TensorInput] = []
    weights: list[WeightInput] = []
    scalars: list[tuple[int, sympy.Expr]] = []
    ranges: dict[sympy.Symbol, tuple[int, int | None]] = {}
    marks: dict[tuple[int, int], tuple[int | None, int | None]] = {}
    names: set[str] = set()
    for position, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        value = node.meta.get("example_value")
        passed = _passed_object(node)
        if isinstance(value, torch.SymInt):
            scalars.append((position, value.node.expr))
        elif isinstance(value, torch.Tensor) and _is_weight(node, passed):
            weights.append(WeightInput(position, _weight_name(node), isinstance(passed, torch.nn.Parameter)))
        elif isinstance(value, torch.Tensor):
            shape = tuple(_size(size) for size in value.shape)
            for axis, size in enumerate(value.shape):
                if not isinstance(shape[axis], int):
                    for symbol in size.node.expr.free_symbols:
                        ranges[symbol] = _symbol_range(size.node.shape_env, symbol)
                    marks[len(tensors), axis] = _marked_range(passed, axis)
            tensors.append(TensorInput(position, _input_name(node, names), value.dtype, shape))
        else:
            raise NotSupported(
                f"it has an input of type {type(value).__name__} ({node.name}), and engines take tensors only"
            )
    if not tensors:
        raise NotSupported("none of its inputs is a tensor")
    dims = _read_dims(tensors, ranges, marks)
    symbols = {dim.symbol for dim in dims} | {expr for _, expr in scalars if expr.is_Symbol}
    outputs = _read_outputs(module, symbols)
    if not any(kind in ("tensor", "argument", "view") for kind, _ in outputs):
        raise NotSupported("none of its outputs is a tensor")
    return CapturedGraph(module, tuple(tensors), tuple(weights), tuple(scalars), dims, outputs)


def _size(size: Any) -> int | sympy.Expr:
    """A number, or an expression over the symbols. A size that the graph fixes, such as a Linear's features, is a
    number."""
    expression = size if isinstance(size, int) else size.node.expr
    return int(expression) if getattr(expression, "is_Integer", False) else expression


def _passed_object(node: torch.fx.Node) -> Any:
    """The object that the user's code passed; None if it no longer exists."""
    argument = node.meta.get("grapharg")
    try:
        return None if argument is None else argument.example
    except (AssertionError, AttributeError, ReferenceError):
        return None


def _is_weight(node: torch.fx.Node, passed: Any) -> bool:
    if isinstance(passed, torch.nn.Parameter):
        return True
    source = getattr(node, "_dynamo_source", None) or getattr(node.meta.get("grapharg"), "source", None)
    kind = source.guard_source if source is not None else None
    kind = kind() if callable(kind) else kind
    return kind is not None and bool(kind.is_specialized_nn_module() or kind.is_unspecialized_nn_module())


def _weight_name(node: torch.fx.Node) -> str:
    """Return ``layers.0.weight`` for ``L['self']._modules['layers']._modules['0']._parameters['weight']``."""
    source = getattr(node, "_dynamo_source", None) or getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    parts = _QUOTED_NAME.findall(name() if callable(name) else str(name))[1:]
    return ".".join(parts) or str(node.target)


def _input_name(node: torch.fx.Node, used_names: set[str]) -> str:
    name = re.sub(r"\W", "_", re.sub(r"^[lL]_(.*?)_?$", r"\1", str(node.target))) or "x"
    name = name if name.isidentifier() else f"x_{name}"
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


def _symbol_range(shape_env: Any, symbol: sympy.Symbol) -> tuple[int, int | None]:
    bounds = shape_env.bound_sympy(symbol)
    high = bounds.upper
    is_bounded = getattr(high, "is_Integer", False) and int(high) < _UNBOUNDED
    low = bounds.lower
    return (int(low) if getattr(low, "is_Integer", False) else 0), (int(high) if is_bounded else None)


def _marked_range(passed: Any, axis: int) -> tuple[int | None, int | None]:
    """The range that the user passed to `mark_dynamic` for an axis; (None, None) if the axis is not marked."""
    for entry in getattr(passed, "_dynamo_dynamic_range", ()):
        if entry.dim == axis:
            return entry.min, entry.max
    return None, None


def _read_dims(
    tensors: Sequence[TensorInput],
    ranges: Mapping[sympy.Symbol, tuple[int, int | None]],
    marks: Mapping[tuple[int, int], tuple[int | None, int | None]],
) -> tuple[Dim, ...]:
    axes_of_symbols: dict[sympy.Symbol, list[tuple[int, int, int]]] = {}
    for number, entry in enumerate(tensors):
        for axis, size in enumerate(entry.shape):
            if isinstance(size, int):
                continue
            factor, rest = size.as_coeff_Mul()
            if rest.is_Symbol and factor.is_Integer and factor > 0:
                axes_of_symbols.setdefault(rest, []).append((number, axis, int(factor)))
            else:
                raise NotSupported(
                    f"axis {axis} of {entry.name!r} has the size {size}, which is not a multiple of one size"
                )
    dims = []
    for symbol, axes in axes_of_symbols.items():
        low, high = ranges[symbol]
        marked_lows = [(marks[number, axis][0], factor) for number, axis, factor in axes]
        lows = [math.ceil(marked_low / factor) for marked_low, factor in marked_lows if marked_low is not None]
        dims.append(Dim(symbol, max(1, low), high, max(lows, default=None), tuple(axes)))
    return tuple(dims)


def _read_outputs(module: torch.fx.GraphModule, symbols: set[sympy.Symbol]) -> tuple[tuple[str, Any], ...]:
    """Read `CapturedGraph.outputs`. `symbols` are those with a value in each call."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    arguments: dict[int, list[tuple[int, torch.Tensor]]] = {}  # address of a storage → the arguments with this memory
    for position, node in enumerate(placeholders):
        address = _storage_address(node.meta.get("example_value"))
        if address is not None:
            arguments.setdefault(address, []).append((position, node.meta["example_value"]))
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    outputs: list[tuple[str, Any]] = []
    numbers: dict[torch.fx.Node, int] = {}
    for value in output.args[0]:
        if not isinstance(value, torch.fx.Node):
            outputs.append(("constant", value))
            continue
        example = value.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            number = numbers.setdefault(value, len(numbers))
            owners = arguments.get(_storage_address(example) or 0, [])
            if value.op == "placeholder":
                outputs.append(("argument", placeholders.index(value)))
            elif not owners:
                outputs.append(("tensor", number))
            elif len(owners) == 1:
                outputs.append(("view", _view_output(example, *owners[0], symbols)))
            else:
                raise NotSupported("it returns a view of inputs that share their memory")
        elif isinstance(example, torch.SymInt):
            if example.node.expr.free_symbols - symbols:
                raise NotSupported(
                    f"it returns the size or number {example}, which depends on the values of its inputs"
                )
            outputs.append(("size", example.node.expr))
        elif isinstance(example, int):
            outputs.append(("constant", example))
        else:
            raise NotSupported(f"it returns a {type(example).__name__}, and engines return tensors only")
    return tuple(outputs)


def _storage_address(value: Any) -> int | None:
    """The address of a tensor's storage object; None for other values, and for tensors without such an object."""
    try:
        return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None
    except (NotImplementedError, RuntimeError):
        return None


def _view_output(
    example: torch.Tensor, position: int, argument: torch.Tensor, symbols: set[sympy.Symbol]
) -> ViewOutput:
    """Describe an output in the memory of an argument. Raises NotSupported if `ViewOutput` cannot describe it."""
    error = NotSupported("it returns a view of an input that has another dtype, or whose sizes are not known")
    if example.dtype != argument.dtype or example.is_conj() or example.is_neg():
        raise error
    numbers = [*example.shape, *example.stride(), example.storage_offset() - argument.storage_offset()]
    expressions = [sympy.sympify(number if isinstance(number, int) else number.node.expr) for number in numbers]
    if any(expression.free_symbols - symbols for expression in expressions):
        raise error
    rank = example.dim()
    return ViewOutput(position, tuple(expressions[:rank]), tuple(expressions[rank:-1]), expressions[-1])
