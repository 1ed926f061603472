"""Compute on a CPU how far TF32 alone moves a model's results: ``python -m benchmarks.gpu.tf32 DIR [MODEL…]``.

Tensor cores use 10 of the 23 bits of float32 factors. For eager PyTorch, cuBLAS rounds factors in this way. Kernels that
cut off the other bits lose up to twice as much in a product. Both are computed here, factor by factor, and compared with
float32 as `shapes` compares engines. An engine whose error lies between the two errors is as precise as TF32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.cases import Case, NoEager, cases
from benchmarks.gpu.shapes import error_of

#: Operator → the indices of the arguments that are factors.
_FACTORS = {"addmm": (1, 2), "baddbmm": (1, 2), "mm": (0, 1), "bmm": (0, 1), "convolution": (0, 1), "linear": (0, 1)}
_LOW_BITS = (1 << 13) - 1


class _TF32(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, *, rounded: bool) -> None:
        super().__init__()
        self._rounded = rounded

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = list(args)
        for index in _FACTORS.get(operator.overloadpacket.__name__, ()):
            arguments[index] = self._shortened(arguments[index])
        return operator(*arguments, **(kwargs or {}))

    def _shortened(self, value: Any) -> Any:
        if value.dtype != torch.float32:
            return value
        bits = value.contiguous().view(torch.int32)
        if self._rounded:  # to nearest, ties to even
            bits = bits + (_LOW_BITS >> 1) + ((bits >> 13) & 1)
        return (bits & ~_LOW_BITS).view(torch.float32)


def errors(case: Case, points: int) -> Iterator[tuple[str, float]]:
    """Yield how the factors were shortened, and the worst error over min, opt, max and random points."""
    eager = case.eager("cpu")
    for name, rounded in (("rounded", True), ("cut off", False)):
        worst = 0.0
        for point in case.points(points):
            args, kwargs = case.inputs(point, "cpu")
            with torch.no_grad():
                wanted = eager(*args, **kwargs)
                with _TF32(rounded=rounded):
                    worst = max(worst, error_of(eager(*args, **kwargs), wanted))
        yield name, worst


def main() -> None:
    """The command."""
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
            text = ", ".join(f"{name} {error:.1e}" for name, error in errors(case, 6))
        except NoEager:
            continue
        print(f"{case.name}: {text}", flush=True)


if __name__ == "__main__":
    main()
