"""Numbers in an output structure."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.core.values.numbers import has_numbers

TENSOR = {"kind": "tensor", "index": 0}
NUMBER = {"kind": "number", "type": "int", "index": 1}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (TENSOR, False),
        ({"kind": "none"}, False),
        ({"kind": "tuple", "items": [TENSOR, {"kind": "constant", "value": 1}]}, False),
        (NUMBER, True),
        ({"kind": "tuple", "items": [TENSOR, {"kind": "dict", "keys": ["n"], "items": [NUMBER]}]}, True),
    ],
)
def test_numbers_are_found_at_every_depth(tree: Any, expected: bool) -> None:
    assert has_numbers(tree) is expected
