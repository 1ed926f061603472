"""Find the int64 values of a model that fit 32 bits. TensorRT before 9 computes int64 in 32 bits, and reports no error.

Rules
1. A value has bounds (min, max) if it is computed only from sizes, positions and constants, by operators with a rule for
   bounds. The bounds are whole numbers of any size, and are valid for every element.
2. A size of an input is at most the number in `largest_sizes`. If `largest_sizes` is None, the profiles are not known
   yet. Then the assumed limit is `LIKELY_SIZE`, and the compiler checks the values again with the sizes of the profiles.
   Any other size or position is below 2**31, as in every tensor of TensorRT.
3. A value is right if TensorRT computes it correctly in 32 bits. A value whose bounds are within 32 bits is right, and
   an int32 that was cast to int64 is right, too.
4. A value with wider bounds is right if it is used only as a size or a position: a size that does not fit 32 bits would
   be an error in the model itself. Before this use, the value may be moved. It may also be added to values that are
   not negative, or multiplied by them, because then no intermediate value is larger than the final value. It must not be
   compared, divided, used in a subtraction, or used as data. A Slice clamps its end, so the end of a Slice counts as data.
5. All other int64 values are wrong. `trtbuild.toolchain.compiling.foreign_types` refuses the nodes that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from trtbuild.toolchain.onnx_files.onnx_outline import Node, Outline

Bounds = tuple[int, int]

INT64 = 7
_INT32 = 6
_BOOL, _FLOATS = 9, frozenset((1, 10, 11, 16))
#: The largest number of elements of a TensorRT tensor.
_MAX_ELEMENTS = 2**31 - 1
#: The assumed largest size of an input, if the largest size is not known.
LIKELY_SIZE = 2**24
#: When a float is cast to an integer, the bounds grow by the fraction 1 / `_ROUNDING_SHARE`, because floats are rounded.
#: This is enough, because float16 has 11 bits, and few operators follow one another.
_ROUNDING_SHARE = 64

#: Operators whose results consist of elements of their first operand.
_MOVING_OPERATORS = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "GatherElements")
) | frozenset(("GatherND", "Expand", "Tile", "Split", "ReduceMax", "ReduceMin"))
#: Operator → the operands from which its results take their elements. The other operands choose the elements.
_CHOSEN_OPERANDS: Mapping[str, slice] = {
    "Concat": slice(None),
    "Max": slice(None),
    "Min": slice(None),
    "Where": slice(1, 3),
    "ScatterElements": slice(0, 3, 2),
    "ScatterND": slice(0, 3, 2),
}
#: Operators whose only result consists of positions.
_POSITION_OPERATORS = frozenset(("ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"))
#: (operator, number of a result that consists of positions), for operators that also have other results.
_POSITION_RESULTS = frozenset((("TopK", 1), ("MaxPool", 1), ("Unique", 1), ("Unique", 2), ("Unique", 3)))
_BOOL_OPERATORS = frozenset(
    ("And", "Or", "Not", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf")
)
#: Operator → the operands whose types its results may have. The results of other operators have the type of the first
#: operand.
_TYPE_OPERANDS: Mapping[str, slice] = {
    "Where": slice(1, 2),
    "CastLike": slice(1, 2),
    "OneHot": slice(2, 3),
    **dict.fromkeys(("If", "Loop", "Scan"), slice(None)),
    **dict.fromkeys(("ConstantOfShape", "Cast", "HannWindow", "HammingWindow", "BlackmanWindow"), slice(0)),
}
#: Operator → its operands that are sizes of its results, numbers of copies, or positions in the first operand (rule 4).
_SIZE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Resize": (3,),
    "Split": (1,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
}
#: Operator → the operands whose values it does not change.
_CARRIED_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Gather", "Slice", "Split", "Transpose", "Expand"), (0,)
    ),
    "Where": (1, 2),
}


class Int64Bounds:
    """The bounds of values of `model`, and the int64 values that are right. `largest_sizes`: input → the largest size of
    its axes."""

    def __init__(self, model: Outline, largest_sizes: Mapping[str, int] | None = None) -> None:
        self._largest_sizes = largest_sizes
        self._bounds: dict[str, Bounds] = dict(model.int64_ranges)
        self._constants = frozenset(model.int64_ranges)
        self._inputs = frozenset(name for name, _ in model.inputs)
        typed = (*model.inputs, *model.initializers)
        self._int64 = {name for name, element in typed if element == INT64}
        self._int32 = {name for name, element in typed if element == _INT32}
        self._floats = {name for name, element in typed if element in _FLOATS}
        self._shapes: set[str] = set()  # the results of Shape
        uses: dict[str, list[tuple[Node, int]]] = {}
        for node in model.nodes:
            for position, name in enumerate(node.inputs):
                uses.setdefault(name, []).append((node, position))
            self._visit(node)
        outputs = frozenset(name for name, _ in model.outputs)
        #: Results that are used only as rule 4 allows. The loop runs backward, because readers of a result follow its node.
        self._size_results: set[str] = set()
        for node in reversed(model.nodes):
            for name in node.outputs:
                readers = uses.get(name, ())
                if name not in outputs and all(self._may_use(reader, position) for reader, position in readers):
                    self._size_results.add(name)

    def is_constant(self, name: str) -> bool:
        """Whether `name` is an int64 initializer with inline data."""
        return name in self._constants

    def fits_32_bits(self, name: str) -> bool:
        """Whether the bounds of `name` are known and within 32 bits."""
        bounds = self._bounds.get(name)
        return bounds is not None and _fit_32_bits(bounds)

    def wrong_results(self, node: Node) -> Collection[str]:
        """Return the int64 results of `node` that are not right."""
        return [name for name in node.outputs if name in self._int64 and not self._is_right(name)]

    # -- bounds, forward

    def _visit(self, node: Node) -> None:
        """Store the types and the bounds of the results of `node`."""
        for number, name in enumerate(node.outputs):
            if self._has_type(self._int64, frozenset((INT64,)), node, number):
                self._int64.add(name)
            elif self._has_type(self._int32, frozenset((_INT32,)), node, number):
                self._int32.add(name)
            elif self._has_type(self._floats, _FLOATS, node, number):
                self._floats.add(name)
            bounds = self._result_bounds(node, number)
            if bounds is not None:
                self._bounds[name] = bounds
        if node.operator == "Shape":
            self._shapes.update(node.outputs)

    def _has_type(self, names: Collection[str], elements: Collection[int], node: Node, number: int) -> bool:
        """Whether a result of `node` has one of the types `elements`. `names` are the known values of these types."""
        operator = node.operator
        if operator in ("Shape", "Size") or operator in _POSITION_OPERATORS or (operator, number) in _POSITION_RESULTS:
            return INT64 in elements
        if operator in _BOOL_OPERATORS:
            return False
        if any(element in elements for element in node.attribute_types):
            return True
        return any(name in names for name in node.inputs[_TYPE_OPERANDS.get(operator, slice(1))])

    def _result_bounds(self, node: Node, number: int) -> Bounds | None:
        operator = node.operator
        if operator == "Shape":
            return 0, self._largest_size(node.inputs[0])
        if operator == "Size" or operator in _POSITION_OPERATORS or (operator, number) in _POSITION_RESULTS:
            return 0, _MAX_ELEMENTS
        if operator in ("Constant", "ConstantOfShape"):
            return node.int64_range or ((0, 1) if node.attribute_types == (_BOOL,) else None)
        if operator == "ReduceProd" and node.inputs and node.inputs[0] in self._shapes:
            return 0, _MAX_ELEMENTS  # the number of elements of a tensor
        names = node.inputs[_CHOSEN_OPERANDS[operator]] if operator in _CHOSEN_OPERANDS else node.inputs
        if operator in _MOVING_OPERATORS or operator == "TopK":
            names = node.inputs[:1]
        operands = [self._bounds.get(name) for name in names if name]
        if (
            operator == "Cast"
            and node.attribute_types == (INT64,)
            and node.inputs[0] in self._int32
            and operands == [None]
        ):
            return -(1 << 31), (1 << 31) - 1  # an int32 whose bounds are not known
        known = [bounds for bounds in operands if bounds is not None]
        if not known or len(known) < len(operands):
            return None
        if operator in _MOVING_OPERATORS or operator in _CHOSEN_OPERANDS or operator == "TopK":
            return _combined_bounds(known)
        if operator in _BOOL_OPERATORS:
            return 0, 1
        if operator == "Cast":
            return self._cast_bounds(node, *known)
        if operator in _WHOLE_NUMBER_OPERATORS and not self._floats.isdisjoint(node.inputs):
            return None
        rule = _ARITHMETIC.get(operator)
        return None if rule is None else rule(known)

    def _largest_size(self, name: str) -> int:
        if self._largest_sizes is None:
            return LIKELY_SIZE if name in self._inputs else _MAX_ELEMENTS
        return self._largest_sizes.get(name, _MAX_ELEMENTS)

    def _cast_bounds(self, node: Node, bounds: Bounds) -> Bounds | None:
        if _BOOL in node.attribute_types:
            return 0, 1
        if node.attribute_types and node.attribute_types[0] in (_INT32, INT64):
            if node.inputs[0] not in self._floats:
                return bounds
            margin = max(map(abs, bounds)) // _ROUNDING_SHARE + 1
            return bounds[0] - margin, bounds[1] + margin
        return (
            bounds if node.attribute_types and node.attribute_types[0] in _FLOATS else None
        )  # casts to other types may change the value

    # -- uses, backward

    def _is_right(self, name: str) -> bool:
        return self.fits_32_bits(name) or (name in self._bounds and name in self._size_results)

    def _may_use(self, node: Node, position: int) -> bool:
        """Whether rule 4 allows that `node` uses a value as this operand."""
        operator = node.operator
        if position in _SIZE_OPERANDS.get(operator, ()):
            return True
        if operator == "Range" and position == 1:
            start, delta = self._bounds.get(node.inputs[0]), self._bounds.get(node.inputs[2])
            return start is not None and start[1] <= 0 and delta == (1, 1)  # the result has `limit` or more elements
        growing = operator in ("Add", "Mul", "Max", "Sum", "ReduceProd")
        grows = growing and all(self._bounds.get(name, (-1, 0))[0] >= 0 for name in node.inputs if name)
        moves = position in _CARRIED_OPERANDS.get(operator, ()) or operator == "Concat"
        stays_int64 = operator == "Cast" and node.attribute_types == (INT64,)
        return (grows or moves or stays_int64) and all(self._is_right(name) for name in node.outputs)


def _fit_32_bits(bounds: Bounds) -> bool:
    return bounds[0] >= -(1 << 31) and bounds[1] < 1 << 31


def _combined_bounds(bounds: list[Bounds]) -> Bounds:
    """The narrowest bounds that contain all of `bounds`."""
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _product(bounds: list[Bounds]) -> Bounds:
    """Bounds of a product."""
    product = bounds[0]
    for low, high in bounds[1:]:
        ends = [left * right for left in product for right in (low, high)]
        product = min(ends), max(ends)
    return product


def _symmetric_bounds(bounds: Bounds) -> Bounds:
    """Bounds of values whose magnitude is at most that of values within `bounds`. They are negative only if `bounds` allow
    negative values."""
    magnitude = max(abs(bounds[0]), abs(bounds[1]))
    return (0 if bounds[0] >= 0 else -magnitude), magnitude


def _quotient(bounds: list[Bounds]) -> Bounds:
    """Bounds of a quotient of whole numbers, which is never larger in magnitude than the dividend."""
    magnitude = _symmetric_bounds(bounds[0])[1]
    return (0 if bounds[0][0] >= 0 and bounds[1][0] >= 0 else -magnitude), magnitude


def _range(bounds: list[Bounds]) -> Bounds:
    """Bounds of a Range: its values are between start and limit, and their number is at most `_MAX_ELEMENTS`."""
    start, limit, delta = bounds
    distance = max(abs(delta[0]), abs(delta[1])) * (_MAX_ELEMENTS - 1)
    return max(min(start[0], limit[0]), start[0] - distance), min(max(start[1], limit[1]), start[1] + distance)


def _product_of_elements(bounds: list[Bounds]) -> Bounds | None:
    """Bounds of a product of elements, or None if an element may be negative. 64 elements are enough, because a shape has
    at most eight."""
    low, high = bounds[0]
    return None if low < 0 else (0, max(high, 1) ** 64)


def _sum_of_elements(bounds: list[Bounds]) -> Bounds:
    return min(bounds[0][0], 0) * _MAX_ELEMENTS, max(bounds[0][1], 0) * _MAX_ELEMENTS


#: Operators whose bounds are valid for whole numbers only. For example, a quotient by a small float has no bound.
_WHOLE_NUMBER_OPERATORS = frozenset(("Div", "Mod", "ReduceProd"))
_ARITHMETIC: Mapping[str, Callable[[list[Bounds]], Bounds | None]] = {
    "Add": lambda bounds: (sum(low for low, _ in bounds), sum(high for _, high in bounds)),
    "Sum": lambda bounds: (sum(low for low, _ in bounds), sum(high for _, high in bounds)),
    "Sub": lambda bounds: (bounds[0][0] - bounds[1][1], bounds[0][1] - bounds[1][0]),
    "Mul": _product,
    "Div": _quotient,
    "Mod": lambda bounds: (min(bounds[0][0], bounds[1][0], 0), max(bounds[0][1], bounds[1][1], 0)),
    "Neg": lambda bounds: (-bounds[0][1], -bounds[0][0]),
    "Abs": lambda bounds: (0, _symmetric_bounds(bounds[0])[1]),
    "Sign": lambda bounds: (-1, 1),
    "Relu": lambda bounds: (max(bounds[0][0], 0), max(bounds[0][1], 0)),
    "Clip": lambda bounds: _combined_bounds(bounds),
    "Sqrt": lambda bounds: (0, max(bounds[0][1], 1)),
    **dict.fromkeys(("Floor", "Ceil", "Round", "ReduceMean"), lambda bounds: bounds[0]),
    **dict.fromkeys(("Pad", "Trilu"), lambda bounds: _combined_bounds([*bounds, (0, 0)])),
    **dict.fromkeys(("ReduceSum", "CumSum"), _sum_of_elements),
    "ReduceProd": _product_of_elements,
    "Range": _range,
}
