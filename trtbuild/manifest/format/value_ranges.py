"""The field `range` of an input, a list with the smallest and the largest value of its elements."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from trtbuild.manifest.format.kinds import Allowed, invalid_value

_RANGE_ALLOWED = "the smallest and the largest value, such as [0, 30521]"


def _check_ends(value: Any) -> Any:
    """Return `value` if it is a list of two numbers. Otherwise raise an error.

    `manifest.shapes` checks that the numbers fit the input's type, which is unknown here."""
    if isinstance(value, list) and len(value) == 2 and all(type(end) in (int, float) for end in value):
        return value
    if isinstance(value, dict) and value.keys() == {"min", "max"}:
        raise invalid_value("`range` is a list, not a mapping", f"write [{value['min']}, {value['max']}]")
    if type(value) in (int, float):
        raise invalid_value(f"`range` must be {_RANGE_ALLOWED}, not the number {value}", f"write [0, {value}]")
    numbers = re.findall(r"[-+]?[0-9]+(?:\.[0-9]+)?", value) if isinstance(value, str) else []
    hint = f"write [{numbers[0]}, {numbers[1]}]" if len(numbers) == 2 else None
    raise invalid_value(f"`range` must be {_RANGE_ALLOWED}", hint)


RangeEnds = Annotated[
    list[Any],
    BeforeValidator(_check_ends),
    WithJsonSchema(
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2, "examples": [[0, 30521]]}
    ),
    Allowed(_RANGE_ALLOWED),
]
