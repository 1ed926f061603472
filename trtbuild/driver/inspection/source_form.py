"""Find out whether a package's model came from PyTorch, from ONNX or from a TensorRT network.

The operators of its layers show this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtbuild.core.model.graph_kinds import NETWORK, ONNX, PROGRAM, GraphKindName

#: Names such as ``matrix_multiply`` and ``MatMul``. The names of PyTorch's operators contain dots.
_NETWORK_LAYER, _ONNX_OPERATOR = re.compile(r"[a-z_]+"), re.compile(r"[A-Z]\w*")


def source_form(names: Any) -> GraphKindName | None:
    """Return the kind of graph of a package with the document `names` (``names.json``), or None if it is not clear."""
    try:
        operators = list(_operators(names))
    except (AttributeError, TypeError, IndexError):
        return None
    if not operators:
        return None
    if any("." in operator for operator in operators):
        return PROGRAM.name
    if all(map(_NETWORK_LAYER.fullmatch, operators)):
        return NETWORK.name
    return ONNX.name if any(map(_ONNX_OPERATOR.fullmatch, operators)) else None


def _operators(names: Any) -> Iterator[str]:
    for partitions in names.values():
        for layers in partitions.values():
            operators = [entry[1] for entry in layers.values()]  # an entry is [module path, operator]
            yield from (str(operator) for operator in operators if operator)
