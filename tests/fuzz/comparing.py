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

from tests.fuzz.pipeline import Built, Case
from trtbuild.core.engine_job import EngineJob
from trtbuild.core.expand import units
from trtbuild.core.expressions import Expression, depends_on_data, evaluate, interval
from trtbuild.core.partitions import Partition, TensorType
from trtbuild.core.shapes import symbol_values
from trtbuild.core.spec import Model
from trtbuild.core.verification import Point, points, tolerances
from trtbuild.runtime.output_tree import Fields, restorer
from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.comparing import Gap, gap
from trtbuild.stages.verify.inputs import integer_ends, random_inputs
from trtbuild.stages.verify.running import Fails, Torch, Unchecked, Values, Weights

#: tensorrt.DataType, as the compiler's document has it → torch's name.
ENGINE_DTYPES = {
    "float": "float32",
    "half": "float16",
    "bf16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
    "uint8": "uint8",
}

#: How far a type's last bit is from 1.
_LAST_BIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Operators that choose among equal values, which one of them is nobody's promise.
_CHOOSING = frozenset(
    (
        "argmax",
        "argmin",
        "argsort",
        "cummax",
        "cummin",
        "kthvalue",
        "max",
        "median",
        "min",
        "mode",
        "msort",
        "nanmedian",
    )
) | frozenset(("sort", "topk", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"))

#: How often results may be as far away as they move by themselves.
_TIMES = 16

#: The whole model may be as many tolerances off: it is as many partitions long, at least.
_WHOLE = 4

Results = Callable[[Sequence[torch.Tensor]], Sequence[Any]]


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
            seen.differences += _of_network(part, built)
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


# -- types and sizes


def _of_network(part: Partition, built: Built) -> Iterator[str]:
    """Where the network that an engine was compiled from is not the partition (rule 1)."""
    (profile,) = built.model.profiles
    ends = zip(
        *(units(built.shapes, symbol_values(built.shapes, profile, which)) for which in ("min", "max")), strict=True
    )
    bounds = list(ends)
    said = built.layers[part.name]
    declared = {"inputs": [type_ for _, type_ in part.inputs], "outputs": list(part.outputs)}
    for kind, types in declared.items():
        wanted = {f"{kind[0]}{k}": type_ for k, type_ in enumerate(types)}
        tensors = {entry["name"]: entry for entry in said[kind]}
        if sorted(tensors) != sorted(wanted):
            yield f"{part.name}: the network's {kind} are {sorted(tensors)}, the partition has {len(types)}"
        for name in wanted.keys() & tensors.keys():
            type_, entry = wanted[name], tensors[name]
            dtype = ENGINE_DTYPES.get(entry["dtype"], entry["dtype"])
            sizes = entry["shape"]
            if dtype != type_.dtype or sizes is None or len(sizes) != len(type_.shape):
                yield f"{part.name}: the network's {name} is {dtype}{sizes}, declared {_spelled(type_)}"
                continue
            for size, axis in zip(sizes, type_.shape, strict=True):
                if size != -1 and interval(axis, bounds) != (size, size):
                    yield f"{part.name}: the network's {name} is {dtype}{sizes}, declared {_spelled(type_)}"
                    break


def _declared(part: Partition, values: Sequence[torch.Tensor], sizes: Sequence[int], where: str) -> Iterator[str]:
    """Where a partition's outputs are not what the document says of them."""
    if len(values) != len(part.outputs):
        yield f"{part.name} gives {len(values)} values at {where}, declared {len(part.outputs)}"
    for k, (type_, value) in enumerate(zip(part.outputs, values, strict=False)):
        if not _is(type_, value, sizes):
            yield f"{part.name}:{k} is {_name(value.dtype)}{list(value.shape)} at {where}, declared {_spelled(type_)}"


def _out_of_profile(
    part: Partition, job: EngineJob, values: Sequence[torch.Tensor], point: Point, where: str
) -> Iterator[str]:
    """Where an engine's inputs are not of the sizes that it is compiled for."""
    for k, (value, shape) in enumerate(zip(values, job.profiles[point.profile], strict=True)):
        low, high = shape.min, shape.max
        if not (
            len(low) == value.dim() and all(a <= size <= b for a, size, b in zip(low, value.shape, high, strict=True))
        ):
            yield f"{part.name} takes {list(value.shape)} at {where} as i{k}, its profile is {list(low)} to {list(high)}"


def _is(type_: TensorType, value: torch.Tensor, sizes: Sequence[int]) -> bool:
    return (
        type_.dtype == _name(value.dtype)
        and len(type_.shape) == value.dim()
        and all(_fits(axis, size, sizes) for axis, size in zip(type_.shape, value.shape, strict=True))
    )


def _fits(axis: Expression, size: int, sizes: Sequence[int]) -> bool:
    return depends_on_data(axis) or evaluate(axis, sizes) == size


def _spelled(type_: TensorType) -> str:
    return f"{type_.dtype}{list(type_.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- numbers


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
            found += _declared(part, right, sizes, where)
            if part.kind == "tensorrt":
                found += _out_of_profile(part, built.jobs[part.name], given, point, where)
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
        self._compare(ours, right, 1, lambda moved: self._eager.part(part, moved), given, f"{part.name} at {where}")

    def _whole(self, inputs: Sequence[torch.Tensor], flat: Sequence[torch.Tensor], where: str) -> None:
        right, structure = pytree.tree_flatten(_plain(self._case.module(*inputs)))
        ours, got = pytree.tree_flatten(_plain(self._restore(flat)))
        if got != structure:
            self._seen.differences.append(f"the outputs at {where} are {got}, and of the module {structure}")
            return
        self._compare(
            ours,
            right,
            _WHOLE,
            lambda moved: pytree.tree_leaves(self._case.module(*moved)),
            inputs,
            f"output at {where}",
        )

    def _compare(
        self, ours: Sequence[Any], right: Sequence[Any], times: int, run: Results, given: Sequence[Any], what: str
    ) -> None:
        precision = _narrowest(self._built.model, [*given, *ours, *right])
        moved: list[Sequence[Any]] | None = None
        for k, (a, b) in enumerate(zip(ours, right, strict=True)):
            self._seen.compared += 1
            if not isinstance(b, torch.Tensor):
                if a != b:
                    self._seen.differences.append(f"{what}, {k}: {a} instead of {b}")
                continue
            far = gap(a, b)
            if far.error <= times * tolerances("onnxruntime")[precision]:
                continue
            if a.dtype == b.dtype and a.shape == b.shape:
                if moved is None and _gap(run(given)[k], b).error:
                    self._seen.differences.append(f"{what}, {k}: PyTorch gives something else each time")
                    continue
                if moved is None:
                    moved = _moved(run, given, _LAST_BIT[precision], self._chooses)
                if far.error <= _TIMES * max((_gap(one[k], b).error for one in moved), default=0.0):
                    continue
            self._seen.differences.append(f"{what}, {k}: {far.text or f'{far.error:.1e} away'}")


def _plain(value: Any) -> Any:
    """What a module returns, in tuples and lists alone: torch's own classes (``return_types.topk``) come as `Fields`."""
    if isinstance(value, tuple | Fields):
        return tuple(_plain(part) for part in value)
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _narrowest(model: Model, values: Sequence[Any]) -> Any:
    """The precision that values are compared in: the model's, or that of the narrowest type among them."""
    kinds = {_name(value.dtype) for value in values if isinstance(value, torch.Tensor)}
    return next((name for name in ("bfloat16", "float16") if name in {model.precision, *kinds}), "float32")


def _operator(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _moved(run: Results, given: Sequence[torch.Tensor], bit: float, equal: bool) -> list[Sequence[Any]]:
    """PyTorch's results where each number of the inputs is a few last bits off; with `equal`, also where each is off by a
    last bit of the largest, so that no two are equal any more."""
    found: list[Sequence[Any]] = []
    for seed in range(4 if equal else 2):
        generator = torch.Generator().manual_seed(seed)
        off = [_off(value, bit, seed >= 2, generator) for value in given]
        found.append(run(off))
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
