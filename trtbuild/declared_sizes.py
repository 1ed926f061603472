"""The operator `declared`, which checks the result of a custom operator (an operator from outside PyTorch).

    trtbuild_checks::declared(Tensor x, SymInt[] sizes, ScalarType dtype, str operator) -> Tensor

A custom operator has a fake implementation, which declares the sizes and the dtype of its result. If the result `x` has
them, `declared` returns `x`. Otherwise it raises OperatorMismatch, because the rest of the model was compiled for the
declared sizes and could compute wrong values. A size of -1 depends on data, so it is not checked.

Traced programs with custom operators call `declared`, so every process that reads such a program defines it: workers, and
processes that run a package. torch is imported when a function runs, because packages also run where torch is not
installed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.errors import OperatorMismatch

if TYPE_CHECKING:
    import torch

#: The namespace of the operator. A serialized program that calls the operator contains `OPERATOR_MARK`.
NAMESPACE, OPERATOR_MARK = "trtbuild_checks", b"torch.ops.trtbuild_checks."

#: A size that is not checked.
UNKNOWN = -1


def define_operator_if_called(program: bytes) -> None:
    """Define the operator if a serialized program calls it."""
    if OPERATOR_MARK in program:
        define_operator()


@functools.cache
def define_operator() -> Any:
    """Define the operator, once in a process. The operator exists as long as the returned `torch.library.Library`."""
    import torch

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("declared(Tensor x, SymInt[] sizes, ScalarType dtype, str operator) -> Tensor")
    library.impl("declared", _declared, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::declared", lambda x, *_: x, lib=library)
    return library


def is_size_check(target: Any) -> bool:
    """Whether the target of a node in a graph is the operator `declared`."""
    return getattr(target, "namespace", "") == NAMESPACE


def _declared(x: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype, operator: str) -> torch.Tensor:
    actual = tuple(x.shape)
    agrees = len(actual) == len(sizes) and all(
        size in (UNKNOWN, actual_size) for size, actual_size in zip(sizes, actual, strict=True)
    )
    if agrees and x.dtype == dtype:
        return x
    raise OperatorMismatch(
        f"the operator {operator} returns {_type_text(x.dtype, actual)}, but its fake implementation declares "
        f"{_type_text(dtype, sizes)}",
        hint="correct the function that torch.library.register_fake registers, and build again",
    )


def _type_text(dtype: torch.dtype, sizes: Sequence[int]) -> str:
    texts = ("?" if size == UNKNOWN else str(size) for size in sizes)
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(texts)}]"
