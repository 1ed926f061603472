"""Compute on a CPU the error that TF32 alone causes in a model: ``python -m benchmarks.gpu.tf32 DIR [MODEL…]``.

For products in TF32, a GPU keeps only the first 10 of the 23 fraction bits of each float32 factor. cuBLAS, which eager
PyTorch calls, rounds a factor to these bits. Other kernels truncate it, and then the error of a product is up to twice as
large. This program shortens the factors in both ways, and compares the results with those of float32. If the error of an
engine (measurement ``shapes``) lies between the two errors, the engine is as precise as TF32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.cases import Case, NoEagerModel, cases
from benchmarks.gpu.subjects.shapes import error_of

#: Operator → the indices of the arguments that it multiplies.
_FACTORS = {"addmm": (1, 2), "baddbmm": (1, 2), "mm": (0, 1), "bmm": (0, 1), "convolution": (0, 1), "linear": (0, 1)}
#: The 13 fraction bits of a float32 that TF32 does not have.
_DROPPED_BITS = (1 << 13) - 1


class _TF32Factors(TorchDispatchMode):  # type: ignore[misc]
    """Shortens the factors of products to the bits of TF32: rounds them if `rounds`, otherwise truncates them."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self._rounds = rounds

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = list(args)
        for index in _FACTORS.get(operator.overloadpacket.__name__, ()):
            arguments[index] = self._with_tf32_bits(arguments[index])
        return operator(*arguments, **(kwargs or {}))

    def _with_tf32_bits(self, value: Any) -> Any:
        if value.dtype != torch.float32:
            return value
        bits = value.contiguous().view(torch.int32)
        if self._rounds:  # to nearest, ties to even
            bits = bits + (_DROPPED_BITS >> 1) + ((bits >> 13) & 1)
        return (bits & ~_DROPPED_BITS).view(torch.float32)


def errors(case: Case, *, points: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the worst error of each way to shorten factors, over min, opt, max and `points` random sizes."""
    eager = case.eager("cpu")
    for name, rounds in (("rounded", True), ("cut off", False)):
        worst = 0.0
        for point in case.points(count=points):
            args, kwargs = case.inputs(point, "cpu")
            with torch.no_grad():
                expected = eager(*args, **kwargs)
                with _TF32Factors(rounds=rounds):
                    worst = max(worst, error_of(eager(*args, **kwargs), expected))
        yield name, worst


def main() -> None:
    """Print both errors of each float32 example that PyTorch can run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tf32", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of `python -m benchmarks.gpu write DIR`")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    for case in cases(options.folder / "examples"):
        if case.model.precision != "float32" or case.model.source.kind == "onnx":
            continue
        if options.models and case.name not in options.models:
            continue
        try:
            text = ", ".join(f"{name} {error:.1e}" for name, error in errors(case, points=6))
        except NoEagerModel:
            continue
        print(f"{case.name}: {text}", flush=True)


if __name__ == "__main__":
    main()
