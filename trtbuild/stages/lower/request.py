"""The arguments of the lower step, which every pass receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.precisions import Precisions


@dataclass(frozen=True)
class Request:
    """The precisions of the modules, and PyTorch's decompositions of operators, mostly of those without an ONNX
    translation. With `truncates_double`, float64 operations are computed in float32."""

    precisions: Precisions
    decompositions: Mapping[Any, Callable[..., Any]]
    truncates_double: bool = False
