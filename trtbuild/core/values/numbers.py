"""The Python numbers that a model may return beside its tensors, such as ``x.shape[0]``.

Programs, engines and packages have a 0-d tensor in place of such a number. The description of the model's outputs says
that the tensor stands for a number:
``{"kind": "number", "type": "int", "index": 1}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Python type → the element type of its tensor, which represents each such number exactly: a Python float has 64 bits,
#: and torch's sizes are below 2**63.
NUMBER_TYPES: Mapping[str, str] = {"int": "int64", "float": "float64", "bool": "bool"}


def has_numbers(tree: Any) -> bool:
    """Whether a number is among the outputs that `tree` describes."""
    if tree["kind"] == "number":
        return True
    return any(has_numbers(item) for item in tree.get("items", ()))
