"""Find the operators that PyTorch decomposes for the sizes of the example only.

A decomposition may ask about a size: whether it is above 10, or which number it is. torch answers with the size of the
example, and the answer decides the graph. At other sizes, such a graph may give wrong results without an error.

Rules
1. A question counts if its answer at one of the tried points differs from its answer at the example. These points are
   tried: the points of the program, and those with one symbol at an end of its range and all others at the other end.
   A question about one symbol is also tried at the smallest sizes of its range, one by one.
2. With ``guard_or_false`` and ``guard_or_true``, a decomposition names the answer that is right for all sizes. A question
   does not count if torch gave this answer.
3. Points at which a symbol is below 2 are left out. At such points, torch asks about strides and broadcasts for almost
   every operator.
4. A question belongs to the innermost operator that is being decomposed. A question outside of a decomposition does not
   count. A question also does not count if an operator asks it only to find the sizes of the operator's result, because
   such an answer does not change the graph.
5. The trace step may have proved a relation of sizes that torch does not know in this step. So a decomposition may be right
   at all sizes, although one of its questions counts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Point, points_of

#: A question about one symbol is tried at the smallest size of the symbol, and at most at this many of the next sizes.
_MOST_SIZES = 256


class SizeQuestions:
    """Records the questions about sizes that decompositions ask."""

    def __init__(self, program: Program) -> None:
        self._env = _shape_env(program)
        self._points = [point for point in _points(program) if all(number >= 2 for number in point.values())]
        #: The operators that are being decomposed. The innermost one is last.
        self._decomposed: list[Any] = []
        #: (question, answer) → whether the question counts.
        self._known: dict[tuple[Any, Any], bool] = {}
        #: The operators whose decomposition has asked a question that counts.
        self.operators: set[Any] = set()

    def watch(self, decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """Return `decompositions` as functions that attribute questions to their operators."""
        return {target: self._watched(target, function) for target, function in decompositions.items()}

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Record the questions that torch answers in the block."""
        env: Any = self._env
        if env is None or not self._points:  # a program without dynamic sizes
            yield
            return
        evaluate = env.evaluate_sym_node

        def evaluate_and_record(node: Any, size_oblivious: bool = False, fallback_value: bool | None = None) -> Any:
            answer = evaluate(node, size_oblivious, fallback_value)
            is_answer_for_all = fallback_value is not None and bool(answer) == fallback_value
            # the proxy mode is off while an operator finds the sizes of its result (rule 4)
            if self._decomposed and not is_answer_for_all and get_proxy_mode() is not None:
                self._record(node.expr, answer)
            return answer

        env.evaluate_sym_node = evaluate_and_record
        try:
            yield
        finally:
            del env.evaluate_sym_node

    def _watched(self, target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def decompose(*args: Any, **kwargs: Any) -> Any:
            self._decomposed.append(target)
            try:
                return function(*args, **kwargs)
            finally:
                self._decomposed.pop()

        return decompose

    def _record(self, question: Any, answer: Any) -> None:
        operator = self._decomposed[-1]
        if operator in self.operators or not getattr(question, "free_symbols", None):
            return
        if (question, answer) not in self._known:
            self._known[question, answer] = any(
                _answer_at(question, point) not in (None, answer) for point in self._points_for(question)
            )
        if self._known[question, answer]:
            self.operators.add(operator)

    def _points_for(self, question: Any) -> Iterator[Point]:
        yield from self._points
        if len(question.free_symbols) == 1:
            (symbol,) = question.free_symbols
            sizes = [point[symbol] for point in self._points if symbol in point]
            if sizes:
                yield from ({symbol: size} for size in range(min(sizes), min(max(sizes), min(sizes) + _MOST_SIZES) + 1))


def _points(program: Program) -> Sequence[Point]:
    """The points of rule 1."""
    points = points_of(program)
    smallest = {symbol: max(2, min(point[symbol] for point in points)) for symbol in points[0]}
    largest = {symbol: max(point[symbol] for point in points) for symbol in points[0]}
    mixed = [
        {**most, symbol: other[symbol]} for most, other in ((smallest, largest), (largest, smallest)) for symbol in most
    ]
    return [*points, *mixed]


def _answer_at(question: Any, point: Point) -> Any:
    """The answer to `question` at `point`. None if it depends on data, or if the question has no answer there."""
    try:
        answer = question.xreplace({symbol: sympy.Integer(number) for symbol, number in point.items()})
    except (ArithmeticError, AssertionError, TypeError, ValueError):
        return None
    return None if answer.free_symbols or answer is sympy.nan else answer


def _shape_env(program: Program) -> ShapeEnv | None:
    for node in program.placeholders:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode.shape_env
    return None
