"""What a package's model came as: its index does not say, but the names of its engines' layers do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: TensorRT's kinds of layers, as a recorded network names them. ONNX's operators begin with a capital, PyTorch's have dots.
_NETWORK, _ONNX = re.compile(r"[a-z_]+"), re.compile(r"[A-Z]\w*")


def source_form(names: Any) -> str | None:
    """``program``, ``onnx`` or ``network`` by the document ``names.json`` of a package; None where that does not tell."""
    try:
        operators = list(_operators(names))
    except (AttributeError, TypeError, IndexError):
        return None
    if not operators:
        return None
    if any("." in operator for operator in operators):
        return "program"
    if all(map(_NETWORK.fullmatch, operators)):
        return "network"
    return "onnx" if any(map(_ONNX.fullmatch, operators)) else None


def _operators(names: Any) -> Iterator[str]:
    for partitions in names.values():
        for layers in partitions.values():
            yield from (str(entry[1]) for entry in layers.values() if entry[1])
