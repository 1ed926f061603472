"""Find the form in which a package's model came: PyTorch, ONNX or a TensorRT network. The layers' operators show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtbuild.core.model.graph_kinds import NETWORK, ONNX, PROGRAM, GraphKindName

#: Patterns of the layer kinds in a TensorRT network, and of ONNX operators. The names of PyTorch's operators contain dots.
_NETWORK_LAYER, _ONNX_OPERATOR = re.compile(r"[a-z_]+"), re.compile(r"[A-Z]\w*")


def source_form(names: Any) -> GraphKindName | None:
    """Return the kind of graph that `names`, a package's document ``names.json``, shows. None if it is not clear."""
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
    """Yield the operators of the layers (`core.packages.names`). A layer without a known operator is left out."""
    for partitions in names.values():
        for layers in partitions.values():
            operators = [entry[1] for entry in layers.values()]  # an entry is [module path, operator]
            yield from (str(operator) for operator in operators if operator)
