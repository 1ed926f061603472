"""Write and read archives of torch.export (zip files) without work that torch 2.13 repeats, or whose result it drops.

This file replaces functions of the private module ``torch._export.serde.serialize``, and so does `trtbuild.stored_sizes`.
``tests/stages/program/test_archives.py`` tests the names that this file replaces. The bytes of an archive do not change.

Rules
1. When torch reads an archive, it evaluates the annotations of a dataclass again for each instance. This takes a third of
   the time for ViT-B. Inside a block of `quick_archives`, the annotations of a class are evaluated once in this process.
2. When torch writes an archive, it also makes a canonical form of the program, and drops the result. This takes two
   thirds of the time. Its only effect is a check that names are unique and that nodes are sorted, and torch's verifier has
   already checked both. Inside a block, the form is not made.
3. With another release than torch 2.13, a block changes nothing, because the code of torch may differ.
4. Several threads may be in a block at the same time. torch's own functions are restored when the last block ends.
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch._export.serde import serialize

from trtbuild.process_wide import ProcessWideChange

#: The release of torch that the rules describe.
_RELEASE = "2.13."


@functools.cache
def _type_hints(annotated: type) -> dict[str, Any]:
    return typing.get_type_hints(annotated, globalns=vars(serialize.schema))


class _Typing:
    """The module `typing`, but `get_type_hints` keeps its results."""

    def __getattr__(self, name: str) -> Any:
        return getattr(typing, name)

    @staticmethod
    def get_type_hints(annotated: type, globalns: dict[str, Any]) -> dict[str, Any]:
        if globalns is not vars(serialize.schema):
            return typing.get_type_hints(annotated, globalns=globalns)
        return _type_hints(annotated)


def _no_canonical_form(program: Any, constants: Any = None) -> None:
    """Replaces ``serialize.canonicalize`` (rule 2)."""


def _replace_functions() -> Callable[[], object]:
    originals = {"typing": serialize.typing, "canonicalize": serialize.canonicalize}
    serialize.typing = _Typing()
    serialize.canonicalize = _no_canonical_form
    return lambda: vars(serialize).update(originals)


_replaced_functions = ProcessWideChange(_replace_functions)


def quick_archives() -> contextlib.AbstractContextManager[None]:
    """Inside the block, ``torch.export.save`` and ``torch.export.load`` are quicker."""
    return _replaced_functions if torch.__version__.startswith(_RELEASE) else contextlib.nullcontext()
