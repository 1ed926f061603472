"""The arguments of a lowering, which every pass gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import Precision


@dataclass(frozen=True)
class Request:
    """The precision to compute in, and the decomposition of each operator without an ONNX translation. With
    `truncates_double`, float64 is computed in float32."""

    precision: Precision
    decompositions: Mapping[Any, Callable[..., Any]]
    truncates_double: bool = False
