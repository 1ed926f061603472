"""The parser that answers in place of a parser that cannot run on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StandInParser:
    """The parser of `toolchain` in `version`. It replaces the parser of another toolchain, because that parser needs a GPU.

    The other fields are additional limits of the replaced toolchain. `dtypes` are the element types (torch's names) in
    which its engines compute. `narrows_int64`: whether its engines compute int64 values in 32 bits. `refuses` are the ONNX
    operators that its parser refuses.
    """

    toolchain: str
    version: str
    dtypes: tuple[str, ...]
    narrows_int64: bool
    refuses: tuple[str, ...]
