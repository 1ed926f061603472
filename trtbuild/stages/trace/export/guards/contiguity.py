"""Answer torch's questions whether a tensor is contiguous, if the answer differs between the declared sizes.

A model may pad a tensor to an even width, and later crop it to its old width. The result is contiguous only if nothing was
padded. torch asks about this, and would assume a guard with the answer for the example. Then the width could not be
dynamic.

Rules
1. torch compares the strides of a tensor with expected ones. If they differ at some declared sizes and are equal at others,
   the answer is "they differ", without a guard. torch itself gives this answer for sizes that depend on data. The answer is
   right for contiguous tensors, too, because it only makes operators copy them.
2. Questions about strides come from the functions `_PYTHON_NAMES` of ``torch._prims_common`` and from the C++ files
   `_FILES`. All of them call ``guard_or_true``.
3. If other C++ code compares the same two expressions, as for the layout "channels last", it gets the same answer. If
   Python code compares them, the guard stays, because user code may take another branch.
4. Each answer is an assumption, so the proof compares model and program at sizes of both kinds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from torch import SymBool, _prims_common
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

#: A module or class of torch, the name of one of its functions, and the function that replaces it.
Replacement = tuple[Any, str, Callable[..., Any]]

_PYTHON_NAMES = ("check_contiguous_sizes_strides", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d")
#: ``Contiguity.h`` has the functions for contiguous tensors, ``TensorUtils.cpp`` the one for strides of a view.
_FILES = ("Contiguity.h", "TensorUtils.cpp")


class StrideQuestions:
    """Answers the questions about strides that torch asks in this thread.

    `assume` returns whether a condition holds at some declared sizes and fails at others. If so, it also records the
    condition and its opposite as assumptions.
    """

    def __init__(self, assume: Callable[[ShapeEnv, Any], bool]) -> None:
        self._assume = assume
        self._thread = threading.get_ident()
        self._python_code = {
            function.__code__ for name in _PYTHON_NAMES if (function := getattr(_prims_common, name, None)) is not None
        }
        #: The two sides of a comparison of strides → whether they are equal at some declared sizes only.
        self._answers: dict[frozenset[Any], bool] = {}

    def replacements(self, original_functions: Mapping[str, Any]) -> list[Replacement]:
        """The functions of torch to replace. The replacements look up the original functions by name when they are
        called."""

        def guard_or_true(condition: Any) -> bool:
            is_question = isinstance(condition, SymBool) and self._is_about_strides(sys._getframe(1))
            if is_question and self._varies(condition.node):
                return True
            return bool(original_functions["guard_or_true"](condition))

        def guard_bool(node: SymNode, file: str, line: int) -> bool:
            if file and threading.get_ident() == self._thread:  # Python code passes no file
                sides = _compared_sides(node.expr)
                if sides is not None and self._answers.get(sides, False):
                    return isinstance(node.expr, sympy.Ne)
            return bool(original_functions["guard_bool"](node, file, line))

        return [(symbolic_shapes, "guard_or_true", guard_or_true), (SymNode, "guard_bool", guard_bool)]

    def _is_about_strides(self, caller: Any) -> bool:
        if threading.get_ident() != self._thread:
            return False
        if caller.f_code is SymNode.guard_or_true.__code__:
            return os.path.basename(caller.f_locals["file"]) in _FILES
        return caller.f_code in self._python_code

    def _varies(self, node: SymNode) -> bool:
        """Whether the two sides of a comparison are equal at some declared sizes only."""
        sides = _compared_sides(node.expr)
        if sides is None or node.shape_env is None:
            return False
        if sides not in self._answers:
            self._answers[sides] = self._assume(node.shape_env, node.expr)
        return self._answers[sides]


def _compared_sides(expression: Any) -> frozenset[Any] | None:
    return frozenset(expression.args) if isinstance(expression, sympy.Eq | sympy.Ne) else None
