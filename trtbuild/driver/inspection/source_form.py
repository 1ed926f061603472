"""The source form of a package's model (PyTorch, ONNX or a TensorRT network), found by the names of its engines' layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtbuild.core.model.graph_kinds import NETWORK, ONNX, PROGRAM, GraphKindName

#: Layer kinds of a recorded TensorRT network, and ONNX operators (with a capital letter). PyTorch's operators have dots.
_NETWORK, _ONNX = re.compile(r"[a-z_]+"), re.compile(r"[A-Z]\w*")


def source_form(names: Any) -> GraphKindName | None:
    """Return the kind of graph that the document ``names.json`` of a package shows; None if it is not clear."""
    try:
        operators = list(_operators(names))
    except (AttributeError, TypeError, IndexError):
        return None
    if not operators:
        return None
    if any("." in operator for operator in operators):
        return PROGRAM.name
    if all(map(_NETWORK.fullmatch, operators)):
        return NETWORK.name
    return ONNX.name if any(map(_ONNX.fullmatch, operators)) else None


def _operators(names: Any) -> Iterator[str]:
    for partitions in names.values():
        for layers in partitions.values():
            yield from (str(entry[1]) for entry in layers.values() if entry[1])
