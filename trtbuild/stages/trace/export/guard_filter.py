"""Remove guards from torch.export's check of the Dims if they restrict no declared size.

torch.export raises an error for every guard on one named Dim that its value ranges do not prove (torch 2.13,
``ShapeEnv.produce_guards``). Many such guards hold at every declared size.

Rules
1. A guard on one symbol that holds at every declared size is removed. Every size is tried, up to `_MOST_SIZES`.
2. A guard that compares a derived size with a number (``x.shape[0] - 1 != 1``), and fails only where this size is 1, is
   removed, too. torch assumes it for broadcasts and strides. It is returned as an assumption, and `proof` compares model
   and program at sizes that break it.
3. Every other guard stays, so torch reports it. The line of user code that made it is the place of the error.

Two functions of torch are replaced while this thread exports a model. They are not public. If one of them does not exist,
no guard is removed, and errors have no line of user code.
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
from trtbuild.stages.trace.export.guards import Guard, axis_of
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames

#: The largest number of sizes of one symbol at which a guard is tried.
_MOST_SIZES = 1_000_000

#: Held while the functions of torch are replaced. Without it, two threads could restore them in the wrong order.
_PATCHING = threading.RLock()

Place = tuple[str, int]


@dataclass(frozen=True)
class _UserLocation(SLoc):
    """torch's location of a guard, with the line of user code."""

    place: Place | None = None


class GuardFilter:
    """`arguments` are the arguments of forward, with the number of the manifest's input instead of each tensor.

    After an export, `assumed` are the guards of rule 2 as Python expressions, and `places` has the line of user code that
    restricted a symbol.
    """

    def __init__(self, job: TraceJob, arguments: Mapping[str, Any], frames: Frames) -> None:
        self.assumed: list[str] = []
        self.places: dict[int, Place] = {}
        self._job, self._arguments, self._frames = job, arguments, frames

    @contextlib.contextmanager
    def active(self, outermost: FrameType) -> Iterator[None]:
        """Filter the guards of one call of torch.export. User code is called below the frame `outermost`."""
        self.assumed, self.places = [], {}
        names = ((torch.export._trace, "produce_guards_and_solve_constraints"), (ShapeEnv, "_get_sloc"))
        if not all(hasattr(owner, name) for owner, name in names):
            yield
            return
        thread = threading.get_ident()
        with _PATCHING:
            solve, locate = torch.export._trace.produce_guards_and_solve_constraints, ShapeEnv._get_sloc

            def filter_and_solve(fake_mode: Any, *args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() == thread:
                    self._filter(fake_mode.shape_env)
                return solve(fake_mode, *args, **kwargs)

            def locate_in_user_code(env: ShapeEnv, *args: Any, **kwargs: Any) -> SLoc:
                location = locate(env, *args, **kwargs)
                if threading.get_ident() != thread:
                    return location
                place = self._frames.innermost(sys._getframe(1), outermost)
                return _UserLocation(location.framework_loc, location.maybe_user_loc, place)

            torch.export._trace.produce_guards_and_solve_constraints = filter_and_solve
            ShapeEnv._get_sloc = locate_in_user_code
            try:
                yield
            finally:
                torch.export._trace.produce_guards_and_solve_constraints = solve
                ShapeEnv._get_sloc = locate

    def _filter(self, env: ShapeEnv) -> None:
        axes = _axes(env)
        for symbol in axes:
            bounds = env.var_to_range_sloc.get(symbol)
            self._note(axes, symbol, env.replacements_slocs.get(symbol))
            for place in (bounds.lower, bounds.upper) if bounds is not None else ():
                self._note(axes, symbol, place)
        kept = []
        for guard in env.guards:
            expression = env.simplify(guard.expr)
            if self._restricts(expression, axes):
                kept.append(guard)
                for symbol in expression.free_symbols:
                    self._note(axes, symbol, guard.sloc)
        env.guards[:] = kept

    def _restricts(self, expression: Any, axes: Mapping[Any, str]) -> bool:
        """Whether torch has to check a guard. If not, and if it fails somewhere, it is noted as an assumption."""
        if len(expression.free_symbols) != 1 or not expression.free_symbols <= axes.keys():
            return True
        guard = self._read(expression, axes)
        if guard is None or len(guard.symbols) != 1:
            return True
        failing = guard.failing_at_every_size(_MOST_SIZES)
        if failing is None:
            return True
        if failing and not self._excludes_size_one(expression, axes, failing):
            return True
        if failing:
            self.assumed.append(_code(expression, axes))
        return False

    def _excludes_size_one(self, expression: Any, axes: Mapping[Any, str], failing: Sequence[int]) -> bool:
        """Whether a guard compares a derived size with a number, and the size is 1 wherever the guard fails."""
        if not isinstance(expression, sympy.core.relational.Relational):
            return False
        sizes = [side for side in expression.args if not side.is_number]
        is_one = self._read(sympy.Eq(sizes[0], 1, evaluate=False), axes) if len(sizes) == 1 else None
        return is_one is not None and all(is_one.holds([size]) for size in failing)

    def _read(self, expression: Any, axes: Mapping[Any, str]) -> Guard | None:
        return Guard.read(_code(expression, axes), self._arguments, self._job.shapes, self._job.inputs)

    def _note(self, axes: Mapping[Any, str], symbol: Any, location: SLoc | None) -> None:
        place = getattr(location, "place", None)
        if place is None or symbol not in axes:
            return
        axis = axis_of(axes[symbol], self._arguments, self._job.shapes, self._job.inputs)
        if isinstance(axis, SymbolAxis):
            self.places.setdefault(axis.symbol, place)


def _code(expression: Any, axes: Mapping[Any, str]) -> str:
    """A guard on one symbol as a Python expression over the axis of an argument."""
    (symbol,) = expression.free_symbols
    return re.sub(rf"\b{symbol.name}\b", lambda _: axes[symbol], PythonPrinter().doprint(expression))


def _axes(env: ShapeEnv) -> dict[Any, str]:
    """The expression of the axis that torch made each symbol for: ``L['x'].size()[0]``."""
    axes = {}
    for symbol, sources in env.var_to_sources.items():
        names = [source.name if isinstance(source.name, str) else source.name() for source in sources]
        axis = next((name for name in names if ".size()[" in name), None)
        if axis is not None:
            axes[symbol] = axis
    return axes
