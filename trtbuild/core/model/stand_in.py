"""A parser that is used in place of another one, which cannot run on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StandIn:
    """The parser of `toolchain` `version`, used in place of the parser of another toolchain, which needs a GPU.

    The other fields are known facts about that other toolchain, and are applied before the stand-in parser is asked: the
    element types (torch's names) that its engines compute in, whether its engines compute int64 values in 32 bits, and the
    ONNX operators that its parser refuses.
    """

    toolchain: str
    version: str
    dtypes: tuple[str, ...]
    narrows_int64: bool
    refuses: tuple[str, ...]
