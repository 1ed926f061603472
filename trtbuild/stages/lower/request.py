"""The arguments of a lowering, which every pass gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import Precision


@dataclass(frozen=True)
class Request:
    """The precision to compute in, and the decomposition of each operator without an ONNX translation."""

    precision: Precision
    decompositions: Mapping[Any, Callable[..., Any]]
