"""Compares the declared types of a built model with the real values, and its results with those of eager PyTorch.

Rules
1. The names, dtypes, ranks and static sizes of an engine's network agree with the partition document. The profiles of the
   engine job agree with the sizes of the real values.
2. At min, opt, max and random points, PyTorch runs each partition on the values that reach it. The results must have the
   declared dtypes and sizes. onnxruntime runs the ONNX model of each engine on the same values.
3. The outputs, in the structure that the module returns, equal the results of the module.
4. Two numbers differ if their distance exceeds the tolerance of `verify`, and is also much larger than the changes of
   PyTorch's own results. `_perturbed_results` measures these changes: it changes the last bits of the inputs. For the
   outputs of the whole model, the tolerance is larger (`_WHOLE_MODEL_TOLERANCES`). Dtypes and shapes must always be equal.
5. Uninitialized memory is filled (`filled_memory`), for example with NaN. So a read of this memory changes the results.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.fuzz.declared import network_differences, profile_differences, result_differences
from tests.fuzz.pipeline import Built, ModuleCase
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Point, coarsest_precision, points_of_model, tolerances
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.planning.expand import symbol_values
from trtbuild.runtime.calls.output_tree import Fields, restorer
from trtbuild.stages.verify.comparing import Deviation, deviation
from trtbuild.stages.verify.inputs import integer_ends, random_inputs
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.precisions import output_precisions
from trtbuild.stages.verify.running import NotRunnable, PartFailed, TorchReference, Values, Weights

#: The distance between 1 and the next larger number of a type.
_LAST_BIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Operators that choose one of several equal values. PyTorch does not specify which one.
_CHOOSING = frozenset((
    "argmax", "argmin", "argsort", "cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "msort", "nanmedian",
    "sort", "topk", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
))  # fmt: skip

#: A difference may be this many times the change of PyTorch's own results (rule 4).
_CHANGE_FACTOR = 16

#: The number of runs that measure the change in rule 4. Rounded results change rarely, but then by a whole rounding step.
_PERTURBED_RUNS = 12

#: The difference of the whole model may be this many times the tolerance, because the model has several partitions.
_WHOLE_MODEL_TOLERANCES = 4


@dataclass
class Comparison:
    """The result of a comparison.

    `unchecked` are error messages about partitions without a kernel in onnxruntime. `compared` is the number of compared
    outputs.
    """

    differences: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    compared: int = 0


def differences(case: ModuleCase, built: Built, *, count: int = 2, seed: int = 0) -> Comparison:
    """Compare a built model with its module. `count` is the number of random points."""
    found = Comparison()
    for part in built.partitions.partitions:
        if part.name in built.layers:
            found.differences += network_differences(part, built)
    with filled_memory(), torch.no_grad():
        comparer = _Comparer(case, built, found)
        for point in points_of_model(built.model, built.shapes, count=count, seed=seed):
            comparer.compare_at(point)
    found.differences = list(dict.fromkeys(found.differences))
    return found


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Fill uninitialized memory (``torch.empty``) with NaN, the largest integer or True (`torch.utils.deterministic`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns for each operator without a deterministic algorithm
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


@dataclass
class _Run:
    """A run of PyTorch for a comparison. `compute` runs PyTorch again, with `inputs` or with changed inputs."""

    #: For messages, such as ``p0 at min [2]``.
    place: str
    precision: Precision
    #: A difference may be this many times the tolerance of `verify`.
    tolerance_factor: int
    compute: Callable[[Sequence[torch.Tensor]], Sequence[Any]]
    inputs: Sequence[torch.Tensor]
    #: Whether an operator of the model chooses among equal values (`_CHOOSING`).
    chooses: bool

    @property
    def tolerance(self) -> float:
        return self.tolerance_factor * tolerances("onnxruntime")[self.precision]

    @functools.cached_property
    def repeated_results(self) -> Sequence[Any]:
        return self.compute(self.inputs)

    @functools.cached_property
    def perturbed_results(self) -> list[Sequence[Any]]:
        return _perturbed_results(self)


class _Comparer:
    """Compares a built model with its module, and adds the results to `found`."""

    def __init__(self, case: ModuleCase, built: Built, found: Comparison) -> None:
        self._case = case
        self._built = built
        self._found = found
        read = built.store.get_bytes
        self._weights = Weights(built.weights, read)
        self._eager = TorchReference(built.programs, self._weights, read)
        self._onnx = OnnxRuntime(lambda graph: read(built.onnx[graph]), self._weights)
        self._ends = integer_ends(built.traced)
        self._restore = restorer(built.output_tree)
        self._chooses = any(_operator(node) in _CHOOSING for node in built.traced.graph.nodes)

    def compare_at(self, point: Point) -> None:
        """Compare each partition, and then the outputs of the model, at one point."""
        built, differences = self._built, self._found.differences
        where = f"{point.which} {list(point.sizes)}"
        sizes = symbol_values(built.shapes, point.sizes)
        inputs = random_inputs(
            [(entry.name, entry.dtype) for entry in built.model.inputs],
            built.shapes.input_shapes(point.sizes),
            point,
            self._ends,
            ranges={},
        )
        values = Values(built.partitions, self._weights, inputs)
        for number, part in enumerate(built.partitions.partitions):
            arguments = values.inputs_of(part)
            try:
                expected = self._eager.run_part(part, arguments)
            except Exception as error:  # an operator may raise any exception
                differences.append(f"{part.name} at {where}: PyTorch fails: {type(error).__name__}: {error}")
                return
            differences += result_differences(part, expected, sizes, where)
            if part.kind == "tensorrt":
                differences += profile_differences(part, built.jobs[part.name], arguments, point, where)
                self._compare_engine(part, arguments, expected, point, where)
            values.put(number, part, expected)
        self._compare_outputs(inputs, [values[source] for source in built.partitions.outputs], where)

    def _compare_engine(
        self,
        part: Partition,
        arguments: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        point: Point,
        where: str,
    ) -> None:
        try:
            computed = self._onnx(part, arguments, point)
        except NotRunnable as error:
            self._found.unchecked.append(f"{part.name}: {error}")
            return
        except PartFailed as error:
            self._found.differences.append(f"{part.name} at {where}: {error}")
            return
        precision = coarsest_precision(output_precisions(self._eager.program(part)))
        run = _Run(
            f"{part.name} at {where}",
            precision,
            tolerance_factor=1,
            compute=lambda inputs: self._eager.run_part(part, inputs),
            inputs=arguments,
            chooses=self._chooses,
        )
        self._compare(computed, expected, run)

    def _compare_outputs(self, inputs: Sequence[torch.Tensor], flat: Sequence[torch.Tensor], where: str) -> None:
        expected, structure = pytree.tree_flatten(_plain(self._case.module(*inputs)))
        computed, built_structure = pytree.tree_flatten(_plain(self._restore(flat)))
        if built_structure != structure:
            self._found.differences.append(
                f"the outputs at {where} are {built_structure}, but those of the module are {structure}"
            )
            return
        precision = coarsest_precision([self._built.model.precision, *output_precisions(self._built.traced)])
        module = self._case.module
        run = _Run(
            f"output at {where}",
            precision,
            tolerance_factor=_WHOLE_MODEL_TOLERANCES,
            compute=lambda inputs: pytree.tree_leaves(module(*inputs)),
            inputs=inputs,
            chooses=self._chooses,
        )
        self._compare(computed, expected, run)

    def _compare(self, computed: Sequence[Any], expected: Sequence[Any], run: _Run) -> None:
        for number, (value, expected_value) in enumerate(zip(computed, expected, strict=True)):
            self._found.compared += 1
            problem = _difference(number, value, expected_value, run)
            if problem is not None:
                self._found.differences.append(f"{run.place}, {number}: {problem}")


def _difference(number: int, value: Any, expected: Any, run: _Run) -> str | None:
    """The difference between output `number` and PyTorch's output, as text. None if they are equal (rule 4)."""
    if not isinstance(expected, torch.Tensor):
        return None if value == expected else f"{value} instead of {expected}"
    distance = deviation(value, expected)
    if distance.error <= run.tolerance:
        return None
    if value.dtype == expected.dtype and value.shape == expected.shape:
        if _deviation(run.repeated_results[number], expected).error:
            return "PyTorch gives different results each time"
        changes = (_deviation(results[number], expected).error for results in run.perturbed_results)
        if distance.error <= _CHANGE_FACTOR * max(changes, default=0.0):
            return None
    return distance.text or f"{distance.error:.1e} away"


def _plain(value: Any) -> Any:
    """The result of a module, with plain tuples instead of named tuples and `Fields`.

    Where a module returns an instance of a class of torch (``return_types.topk``), the built model returns `Fields`.
    """
    if isinstance(value, tuple | Fields):
        return tuple(_plain(part) for part in value)
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _operator(node: torch.fx.Node) -> str:
    """The operator's name, such as ``argmax``, without the overload."""
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _perturbed_results(run: _Run) -> list[Sequence[Any]]:
    """PyTorch's results of several runs, in which each float of the inputs changes by about its last bit.

    If an operator chooses among equal values, further runs change each float by about the last bit of the largest float.
    So equal numbers usually become different.
    """
    results: list[Sequence[Any]] = []
    for seed in range(2 * _PERTURBED_RUNS if run.chooses else _PERTURBED_RUNS):
        generator = torch.Generator().manual_seed(seed)
        perturbed = [
            _perturbed(value, _LAST_BIT[run.precision], seed >= _PERTURBED_RUNS, generator) for value in run.inputs
        ]
        results.append(run.compute(perturbed))
    return results


def _perturbed(value: torch.Tensor, bit: float, by_largest: bool, generator: torch.Generator) -> torch.Tensor:
    """Return `value`. Floats get random noise of about `bit` times each number, or times the largest one (`by_largest`)."""
    if not value.is_floating_point() or not value.numel():
        return value
    wide = value.double()
    finite = wide[torch.isfinite(wide)]
    scale = float(finite.abs().max()) if by_largest and finite.numel() else wide
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * bit
    return (wide + noise * scale).to(value.dtype)


def _deviation(perturbed: Any, expected: torch.Tensor) -> Deviation:
    """The distance of a changed result from `expected`. It is infinite if the shape, which may depend on data, differs."""
    return deviation(perturbed, expected) if isinstance(perturbed, torch.Tensor) else Deviation(math.inf)
