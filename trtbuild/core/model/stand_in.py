"""A parser that is asked in place of another that cannot run on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StandIn:
    """The parser of `toolchain` `version` answers for a toolchain that needs a GPU to parse.

    What is known of that toolchain goes before its answer: element types (torch's names) that its engines compute in,
    whether they compute int64 values in 32 bits, and ONNX operators that its parser refuses.
    """

    toolchain: str
    version: str
    dtypes: tuple[str, ...]
    narrows_int64: bool
    refuses: tuple[str, ...]
