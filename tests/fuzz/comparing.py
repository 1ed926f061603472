"""Whether what was built is the module: its types against what flows, its numbers against eager PyTorch.

Rules
1. What an engine's network says of its inputs and outputs (names, dtype, rank, sizes that are one number) agrees with what
   the partition document declares; so do the profiles of its job with the sizes that really flow in.
2. At min, opt, max and random points: each partition is run by PyTorch on the values that really reach it, which must have
   the declared dtypes and sizes; an engine's conversion is run by onnxruntime on the same values.
3. All outputs, put into the structure that the module returns, are what the module itself returns there.
4. Numbers differ where they are further apart than verify's tolerance, and further than PyTorch's own results move when its
   inputs move by their last bits (`_moved`): what is beyond that says nothing. Dtypes and shapes are equal, always.
5. Memory that nobody has written is filled with NaN (`filled_memory`), so that whoever reads it is seen.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.fuzz.declared import of_network, of_profile, of_results
from tests.fuzz.pipeline import Built, Case
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Point, coarsest, points, tolerances
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.planning.expand import units
from trtbuild.runtime.calls.output_tree import Fields, restorer
from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.comparing import Gap, gap
from trtbuild.stages.verify.inputs import integer_ends, random_inputs
from trtbuild.stages.verify.precisions import of_outputs
from trtbuild.stages.verify.running import Fails, Torch, Unchecked, Values, Weights

#: How far a type's last bit is from 1.
_LAST_BIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Operators that choose among equal values, which one of them is nobody's promise.
_CHOOSING = frozenset((
    "argmax", "argmin", "argsort", "cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "msort", "nanmedian",
    "sort", "topk", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
))  # fmt: skip

#: How often results may be as far away as they move by themselves.
_TIMES = 16

#: How often it is tried how far they move: what is rounded to a whole number moves seldom, and far.
_MOVES = 12

#: The whole model may be as many tolerances off: it is as many partitions long, at least.
_WHOLE = 4


@dataclass
class Seen:
    """What a comparison has found. `unchecked` are partitions that onnxruntime has no kernels for, and its words."""

    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    compared: int = 0


def differences(case: Case, built: Built, *, count: int = 2, seed: int = 0) -> Seen:
    """Where what was built is not the module, in words. `count` is the number of random points."""
    seen = Seen()
    for part in built.partitions.partitions:
        if part.kind == "tensorrt":
            seen.differences += of_network(part, built)
    with filled_memory(), torch.no_grad():
        comparison = _Comparison(case, built, seen)
        for point in points(built.model, built.shapes, count=count, seed=seed):
            comparison.at(point)
    seen.differences = list(dict.fromkeys(seen.differences))
    return seen


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """What ``torch.empty`` and the like give is NaN, the largest integer or True (`torch.utils.deterministic`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each operator that has no other algorithm
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class _Run:
    """A run of PyTorch's that something is compared with: what it is of, what it computes in, how many tolerances it may be
    off, and how to have it again, of other inputs than those that were `given`."""

    what: str
    precision: Precision
    times: int
    results: Callable[[Sequence[torch.Tensor]], Sequence[Any]]
    given: Sequence[torch.Tensor]


class _Comparison:
    def __init__(self, case: Case, built: Built, seen: Seen) -> None:
        self._case = case
        self._built = built
        self._seen = seen
        read = built.store.get_bytes
        self._weights = Weights(built.weights, read)
        self._eager = Torch(built.programs, self._weights, read)
        self._onnx = OnnxRuntime(lambda graph: read(built.onnx[graph]), self._weights)
        self._ends = integer_ends(built.traced)
        self._restore = restorer(built.output_tree)
        self._chooses = any(_operator(node) in _CHOOSING for node in built.traced.graph.nodes)

    def at(self, point: Point) -> None:
        built, found = self._built, self._seen.differences
        where = f"{point.which} {list(point.sizes)}"
        sizes = units(built.shapes, point.sizes)
        inputs = random_inputs(
            [(entry.name, entry.dtype) for entry in built.model.inputs],
            built.shapes.sizes(point.sizes),
            point,
            self._ends,
            {},
        )
        values = Values(built.partitions, self._weights, inputs)
        for number, part in enumerate(built.partitions.partitions):
            given = values.of(part)
            try:
                right = self._eager.part(part, given)
            except Exception as error:  # of any operator
                found.append(f"{part.name} at {where}: PyTorch fails: {type(error).__name__}: {error}")
                return
            found += of_results(part, right, sizes, where)
            if part.kind == "tensorrt":
                found += of_profile(part, built.jobs[part.name], given, point, where)
                self._part(part, given, right, point, where)
            values.put(number, part, right)
        self._whole(inputs, [values[source] for source in built.partitions.outputs], where)

    def _part(
        self, part: Partition, given: Sequence[torch.Tensor], right: Sequence[torch.Tensor], point: Point, where: str
    ) -> None:
        try:
            ours = self._onnx(part, given, point)
        except Unchecked as error:
            self._seen.unchecked.append(f"{part.name}: {error}")
            return
        except Fails as error:
            self._seen.differences.append(f"{part.name} at {where}: {error}")
            return
        precision = coarsest(of_outputs(self._eager.program(part)))
        run = _Run(f"{part.name} at {where}", precision, 1, lambda moved: self._eager.part(part, moved), given)
        self._compare(ours, right, run)

    def _whole(self, inputs: Sequence[torch.Tensor], flat: Sequence[torch.Tensor], where: str) -> None:
        right, structure = pytree.tree_flatten(_plain(self._case.module(*inputs)))
        ours, got = pytree.tree_flatten(_plain(self._restore(flat)))
        if got != structure:
            self._seen.differences.append(f"the outputs at {where} are {got}, and of the module {structure}")
            return
        precision = coarsest([self._built.model.precision, *of_outputs(self._built.traced)])
        module = self._case.module
        run = _Run(f"output at {where}", precision, _WHOLE, lambda moved: pytree.tree_leaves(module(*moved)), inputs)
        self._compare(ours, right, run)

    def _compare(self, ours: Sequence[Any], right: Sequence[Any], run: _Run) -> None:
        allowed = run.times * tolerances("onnxruntime")[run.precision]
        moved: list[Sequence[Any]] | None = None
        for k, (a, b) in enumerate(zip(ours, right, strict=True)):
            self._seen.compared += 1
            if not isinstance(b, torch.Tensor):
                if a != b:
                    self._seen.differences.append(f"{run.what}, {k}: {a} instead of {b}")
                continue
            far = gap(a, b)
            if far.error <= allowed:
                continue
            if a.dtype == b.dtype and a.shape == b.shape:
                if moved is None and _gap(run.results(run.given)[k], b).error:
                    self._seen.differences.append(f"{run.what}, {k}: PyTorch gives something else each time")
                    continue
                if moved is None:
                    moved = _moved(run, self._chooses)
                if far.error <= _TIMES * max((_gap(one[k], b).error for one in moved), default=0.0):
                    continue
            self._seen.differences.append(f"{run.what}, {k}: {far.text or f'{far.error:.1e} away'}")


def _plain(value: Any) -> Any:
    """What a module returns, in tuples and lists alone: torch's own classes (``return_types.topk``) come as `Fields`."""
    if isinstance(value, tuple | Fields):
        return tuple(_plain(part) for part in value)
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _operator(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _moved(run: _Run, equal: bool) -> list[Sequence[Any]]:
    """PyTorch's results where each number of the inputs is a few last bits off; with `equal`, also where each is off by a
    last bit of the largest, so that no two are equal any more."""
    found: list[Sequence[Any]] = []
    for seed in range(2 * _MOVES if equal else _MOVES):
        generator = torch.Generator().manual_seed(seed)
        off = [_off(value, _LAST_BIT[run.precision], seed >= _MOVES, generator) for value in run.given]
        found.append(run.results(off))
    return found


def _off(value: torch.Tensor, bit: float, alike: bool, generator: torch.Generator) -> torch.Tensor:
    if not value.is_floating_point() or not value.numel():
        return value
    wide = value.double()
    finite = wide[torch.isfinite(wide)]
    scale = float(finite.abs().max()) if alike and finite.numel() else wide
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * bit
    return (wide + noise * scale).to(value.dtype)


def _gap(moved: Any, right: torch.Tensor) -> Gap:
    """How far moved results are; shapes that depend on data may be others."""
    return gap(moved, right) if isinstance(moved, torch.Tensor) else Gap(math.inf)
