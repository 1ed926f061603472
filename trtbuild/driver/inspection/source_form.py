"""What a package's model came as: its index does not say, but the names of its engines' layers do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtbuild.regular import read_regular

#: TensorRT's kinds of layers, as a recorded network names them. ONNX's operators begin with a capital, PyTorch's have dots.
_NETWORK, _ONNX = re.compile(r"[a-z_]+"), re.compile(r"[A-Z]\w*")


def source_form(path: Path) -> str | None:
    """``program``, ``onnx`` or ``network`` for the package in `path`; None where its names do not tell."""
    try:
        operators = list(_operators(json.loads(read_regular(path / "names.json"))))
    except (OSError, ValueError, AttributeError, TypeError, IndexError):
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
