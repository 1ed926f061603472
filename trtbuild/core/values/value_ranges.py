"""The declared range of an input's values: ``range: [0, 30521]``, both ends included.

Random inputs are drawn from this range: for the trace, and for the comparisons in the trace and lower steps and in
`verify`, `run` and `bench`. Engines do not depend on the range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

#: The smallest and the largest value: both ints for an integer type, both floats for a floating type.
ValueRange: TypeAlias = tuple[int, int] | tuple[float, float]

#: Type → its smallest and largest value.
TYPE_LIMITS: Mapping[str, ValueRange] = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float16": (-65504.0, 65504.0),
    "bfloat16": (-(2.0**128 - 2.0**120), 2.0**128 - 2.0**120),
    "float32": (-(2.0**128 - 2.0**104), 2.0**128 - 2.0**104),
    "float64": (-1.7976931348623157e308, 1.7976931348623157e308),
}


#: Matches "out of range", but not "Dimension out of range", which is an error about the number of an axis.
_OUT_OF_RANGE = re.compile(r"\b(?<!Dimension )out of (range|bounds|\w+ bounds)\b", re.IGNORECASE)


def is_index_error(message: str) -> bool:
    """Whether an error message of torch or onnxruntime means that an index is out of range."""
    return _OUT_OF_RANGE.search(message) is not None


class InvalidRange(NamedTuple):
    """The reason why two numbers are not a valid range of values, and a hint."""

    text: str
    hint: str


def value_range(dtype: str, low: Any, high: Any) -> ValueRange | InvalidRange:
    """The range from `low` to `high` for an input of `dtype`, or the reason why it is not valid.

    The result has ints for an integer type and floats for a floating type, so equal ranges have equal keys."""
    if dtype not in TYPE_LIMITS:
        return InvalidRange(f"a {dtype} input has no range of values", "leave `range` out")
    least, most = TYPE_LIMITS[dtype]
    is_integer_type = isinstance(least, int)
    for value in (low, high):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return InvalidRange(
                f"{value!r} in a range of values is not a number", "write the smallest and the largest value"
            )
        if isinstance(value, float) and not math.isfinite(value):
            return InvalidRange(
                f"a range of values ends at {value}", f"write numbers; the values of {dtype} are from {least} to {most}"
            )
        if is_integer_type and isinstance(value, float):
            hint = f"write {int(value)}" if value.is_integer() else "write whole numbers"
            return InvalidRange(f"the values of {dtype} are whole numbers, not {value}", hint)
        if not least <= value <= most:
            return InvalidRange(
                f"{value} is not a value of {dtype}", f"the values of {dtype} are from {least} to {most}"
            )
    if low > high:
        return InvalidRange(
            f"the range of values [{low}, {high}] has its largest value first", f"write [{high}, {low}]"
        )
    return (low, high) if is_integer_type else (float(low), float(high))
