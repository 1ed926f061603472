"""The Python numbers that a model may return beside its tensors: sizes, and numbers that are computed.

A program, an engine and a package hold such a number as a 0-d tensor. The output structure marks this tensor as a number:
``{"kind": "number", "type": "int", "index": 1}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Type of a number → the element type that represents each such number exactly. Python's floats have 64 bits (float32
#: would round ``x.shape[0] / 3``), and torch's sizes are below 2**63.
NUMBER_TYPES: Mapping[str, str] = {"int": "int64", "float": "float64", "bool": "bool"}


def has_numbers(tree: Any) -> bool:
    """Whether a leaf of an output structure is a number."""
    if tree["kind"] == "number":
        return True
    return any(has_numbers(item) for item in tree.get("items", ()))
