"""Remove guards from torch.export's check of the Dims if they hold at every declared size.

A guard is a condition on sizes that torch assumes while it traces a model. torch.export raises an error for every guard on
one named Dim, unless its analysis of value ranges proves the guard (torch 2.13, ``ShapeEnv.produce_guards``). Many guards
are not proved, although they hold at every declared size.

Rules
1. A guard on one symbol that holds at every declared size is removed. Every size is tried. If the symbol has more than
   `MAX_SIZES` sizes, the guard stays. torch has a symbol for each axis. Before a guard is tried, the symbols of all axes of
   one dim are replaced by the first of them. So a guard on two axes of one dim is a guard on one symbol (``torch.chunk`` of
   two concatenated inputs has such guards).
2. Some guards compare a computed size with a number (``x.shape[0] - 1 != 1``), because broadcasts and strides are different
   at size 1. If such a guard fails only where the computed size is 1, the guard is removed, too. It is then one of
   `assumptions`, and `proof` compares model and program at sizes that break it.
3. Every other guard stays. If torch reports it, the error names the line of user code that caused the guard.
4. `contiguity` answers a question about strides if its guard holds at some sizes only. The guard and its opposite are then
   `assumptions`, too.

Some functions of torch are replaced while this thread exports a model. They are not public. If a version of torch lacks one
of those in `patch_torch`, no guard is removed, and errors name no line of user code. If it lacks one of those in
`contiguity`, rule 4 does not apply.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy
import torch.export._trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv, SLoc
from torch.utils._sympy.printers import PythonPrinter

from trtbuild.core.model.shapes import SymbolAxis
from trtbuild.stages.trace.export.guards.contiguity import Replacement, StrideQuestions
from trtbuild.stages.trace.export.guards.guard import Guard, axis_of
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames

#: A thread holds this lock while the functions of torch are replaced, because two threads could restore them in the wrong
#: order.
_PATCH_LOCK = threading.RLock()

#: A file and a line number.
CodeLine = tuple[str, int]


@dataclass(frozen=True)
class _UserLocation(SLoc):
    """torch's location of a guard, with the line of user code."""

    place: CodeLine | None = None


class GuardFilter:
    """Filters the guards of one call of torch.export.

    `arguments` are the arguments of forward, with the number of the manifest's input instead of each tensor. After an
    export, `assumptions` are the guards of rules 2 and 4 as Python expressions. `places` maps a symbol to the line of user
    code that restricts it.
    """

    def __init__(self, job: TraceJob, arguments: Mapping[str, Any], frames: Frames) -> None:
        self.assumptions: list[str] = []
        self.places: dict[int, CodeLine] = {}
        self._job, self._arguments, self._frames = job, arguments, frames

    @contextlib.contextmanager
    def patch_torch(self, outermost: FrameType) -> Iterator[None]:
        """Filter the guards of the call of torch.export inside the block. The frame `outermost` makes this call, so user
        code runs in frames between it and the innermost frame."""
        self.assumptions, self.places = [], {}
        thread = threading.get_ident()
        original: dict[str, Any] = {}

        def filter_and_solve(fake_mode: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                self._remove_harmless_guards(fake_mode.shape_env)
            return original["produce_guards_and_solve_constraints"](fake_mode, *args, **kwargs)

        def locate_in_user_code(env: ShapeEnv, *args: Any, **kwargs: Any) -> SLoc:
            location = original["_get_sloc"](env, *args, **kwargs)
            if threading.get_ident() != thread:
                return location
            place = self._frames.place_between(sys._getframe(1), outermost)
            return _UserLocation(location.framework_loc, location.maybe_user_loc, place)

        replacements = [
            (torch.export._trace, "produce_guards_and_solve_constraints", filter_and_solve),
            (ShapeEnv, "_get_sloc", locate_in_user_code),
        ]
        with _replaced(replacements, original), self.answer_stride_questions():
            yield

    @contextlib.contextmanager
    def answer_stride_questions(self) -> Iterator[None]:
        """Inside the block, `contiguity` answers questions about strides, without guards (rule 4)."""
        original: dict[str, Any] = {}
        with _replaced(StrideQuestions(self._assume_if_varying).replacements(original), original):
            yield

    def _remove_harmless_guards(self, env: ShapeEnv) -> None:
        axes = _axis_expressions(env)
        for symbol in axes:
            bounds = env.var_to_range_sloc.get(symbol)
            self._record_place(axes, symbol, env.replacements_slocs.get(symbol))
            for place in (bounds.lower, bounds.upper) if bounds is not None else ():
                self._record_place(axes, symbol, place)
        checked_guards = []
        representatives = self._representatives(axes)
        for guard in env.guards:
            expression = env.simplify(guard.expr).xreplace(representatives)
            if self._is_checked_by_torch(expression, axes):
                checked_guards.append(guard)
                for symbol in expression.free_symbols:
                    self._record_place(axes, symbol, guard.sloc)
        env.guards[:] = checked_guards

    def _representatives(self, axes: Mapping[Any, str]) -> dict[Any, Any]:
        """torch's symbol → the first symbol of the same dim (rule 1)."""
        first_symbols: dict[int, Any] = {}
        representatives = {}
        for symbol, source in axes.items():
            axis = axis_of(source, self._arguments, self._job.shapes, self._job.inputs)
            if isinstance(axis, SymbolAxis):
                representatives[symbol] = first_symbols.setdefault(axis.symbol, symbol)
        return representatives

    def _is_checked_by_torch(self, expression: Any, axes: Mapping[Any, str]) -> bool:
        """Whether torch has to check a guard (rule 3). If rule 2 applies, the guard is added to `assumptions`."""
        if len(expression.free_symbols) != 1 or not expression.free_symbols <= axes.keys():
            return True
        guard = self._parse_guard(expression, axes)
        if guard is None or len(guard.symbols) != 1:
            return True
        failing_sizes = guard.all_failing_sizes()
        if failing_sizes is None:
            return True
        if failing_sizes and not self._fails_only_at_size_one(expression, axes, failing_sizes):
            return True
        if failing_sizes:
            self.assumptions.append(_guard_code(expression, axes))
        return False

    def _assume_if_varying(self, env: ShapeEnv, expression: Any) -> bool:
        """Whether a condition holds at some declared sizes and fails at others, apart from size 1. If so, the condition and
        its opposite are added to `assumptions` (rule 4). Only a sample of sizes is tried, because torch asks often."""
        axes = _axis_expressions(env)
        expression = env.simplify(expression).xreplace(self._representatives(axes))
        if not expression.free_symbols or not expression.free_symbols <= axes.keys():
            return False
        guard = self._parse_guard(expression, axes)
        holding, failing = ([], []) if guard is None else guard.sample()
        if not holding or not failing:
            return False
        if len(failing[0]) == 1 and self._fails_only_at_size_one(expression, axes, [size for (size,) in failing]):
            return False
        self.assumptions += [_guard_code(part, axes) for part in (expression, sympy.Not(expression))]
        return True

    def _fails_only_at_size_one(self, expression: Any, axes: Mapping[Any, str], failing_sizes: Sequence[int]) -> bool:
        """Whether a guard compares a size with a number, and this size is 1 wherever the guard fails (rule 2)."""
        if not isinstance(expression, sympy.core.relational.Relational):
            return False
        sizes = [side for side in expression.args if not side.is_number]
        is_one = self._parse_guard(sympy.Eq(sizes[0], 1, evaluate=False), axes) if len(sizes) == 1 else None
        return is_one is not None and all(is_one.holds([size]) for size in failing_sizes)

    def _parse_guard(self, expression: Any, axes: Mapping[Any, str]) -> Guard | None:
        return Guard.parse(_guard_code(expression, axes), self._arguments, self._job.shapes, self._job.inputs)

    def _record_place(self, axes: Mapping[Any, str], symbol: Any, location: SLoc | None) -> None:
        place = getattr(location, "place", None)
        if place is None or symbol not in axes:
            return
        axis = axis_of(axes[symbol], self._arguments, self._job.shapes, self._job.inputs)
        if isinstance(axis, SymbolAxis):
            self.places.setdefault(axis.symbol, place)


@contextlib.contextmanager
def _replaced(replacements: Sequence[Replacement], original: dict[str, Any]) -> Iterator[None]:
    """Replace functions of torch inside the block. `original` has the replaced functions by name.

    If torch lacks one of them, nothing is replaced."""
    if not all(hasattr(holder, name) for holder, name, _ in replacements):
        yield
        return
    with _PATCH_LOCK:
        original.update((name, getattr(holder, name)) for holder, name, _ in replacements)
        for holder, name, replacement in replacements:
            setattr(holder, name, replacement)
        try:
            yield
        finally:
            for holder, name, _ in replacements:
                setattr(holder, name, original[name])


def _guard_code(expression: Any, axes: Mapping[Any, str]) -> str:
    """A guard as a Python expression over axes of arguments."""
    axis_of_name = {symbol.name: axes[symbol] for symbol in expression.free_symbols}
    names = "|".join(map(re.escape, axis_of_name))
    return re.sub(rf"\b({names})\b", lambda match: axis_of_name[match[0]], PythonPrinter().doprint(expression))


def _axis_expressions(env: ShapeEnv) -> dict[Any, str]:
    """torch's symbol → the expression of the axis that it stands for: ``L['x'].size()[0]``."""
    axes = {}
    for symbol, sources in env.var_to_sources.items():
        names = [source.name if isinstance(source.name, str) else source.name() for source in sources]
        axis = next((name for name in names if ".size()[" in name), None)
        if axis is not None:
            axes[symbol] = axis
    return axes
