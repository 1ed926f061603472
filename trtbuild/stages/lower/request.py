"""What a lowering is asked for; every pass is given it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import Precision


@dataclass(frozen=True)
class Request:
    """`precision` to compute in; `decompositions` by operator, for operators without an ONNX translation."""

    precision: Precision
    decompositions: Mapping[Any, Callable[..., Any]]
