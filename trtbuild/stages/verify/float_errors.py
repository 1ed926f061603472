"""Measure the error of a quantized model against the float model.

Rules
1. The float model of a model with ``quantize:`` is the trace of the model without ``quantize:``. For other models, it is
   the traced program without quantizers. A package has no traced program, so its float model consists of the programs of
   its partitions, without quantizers. These programs compute in the precision of the model.
2. If a program stores weights as quantized numbers, their floats are lost. Without quantizers, the program then has the
   rounded weights, and the report says that their error is not known. If the model has no other quantizers, nothing is
   measured. Nothing is measured for a model that comes as ONNX, either.
3. The error of an output is max|a-b| / max|b|, and its mean is mean|a-b| / max|b|, where b is the float model's output.
   Fill values do not count in max|b| (`comparing`). Only outputs of floating types are compared, where b is finite.
4. If an output cannot be compared, or the float model fails, at one of the points, the error is unknown and exceeds every
   limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from trtbuild.core.model.comparisons import FloatError, OutputError
from trtbuild.stages.program.unquantized import Unquantized
from trtbuild.stages.verify.comparing import largest_magnitude


@dataclass(frozen=True)
class FloatModel:
    """The float model of a quantized model.

    `unknown` says which part of the error is not known, as the end of a sentence that begins with "the error is". It is
    empty if the whole error is known."""

    #: Inputs → the float model's outputs. None if nothing can be measured.
    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None
    unknown: str


def unknown_part(programs: Sequence[Unquantized], *, has_rounded_weights: bool = False) -> str:
    """Return the part of the error that programs without quantizers do not show, as in `FloatModel.unknown`.

    `has_rounded_weights` is whether the trace has rounded weights and stores them as floats."""
    stored = dict.fromkeys(type_ for program in programs for type_ in program.stored)
    left = dict.fromkeys(name for program in programs for name in program.left)
    stored |= {"rounded floats": None} if has_rounded_weights else {}
    texts = [f"unknown for weights, whose floats trtbuild does not have ({', '.join(stored)})"] if stored else []
    texts += [f"unknown for {', '.join(left)}, which cannot be removed"] if left else []
    return "; ".join(texts)


class FloatErrors:
    """Collects the errors of all points, which are choices of input sizes and values."""

    def __init__(self, model: FloatModel) -> None:
        self._model = model
        self._unknown = model.unknown
        #: Number of an output → its largest error at any point.
        self._largest: dict[int, float] = {}
        #: Number of an output → (mean error, number of values) at each point.
        self._means: dict[int, list[tuple[float, int]]] = {}

    def add(self, actual: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Compare `actual`, the quantized model's results for `inputs`, with those of the float model."""
        if self._model.run is None:
            return
        try:
            expected = self._model.run(inputs)
        except Exception as error:  # an operator may raise any error
            first_line = (str(error).splitlines() or [""])[0]
            self._unknown = f"unknown, because the float model fails: {type(error).__name__}: {first_line}"
            return
        if len(actual) != len(expected):
            self._unknown = f"unknown, because the float model has {len(expected)} outputs instead of {len(actual)}"
            return
        for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
            if b.is_floating_point() and (problem := self._add_output(number, a, b)) is not None:
                self._unknown = f"unknown for output {number}, which {problem}"

    def _add_output(self, number: int, a: torch.Tensor, b: torch.Tensor) -> str | None:
        """Compare an output `a` with that of the float model. Returns a reason if they cannot be compared."""
        if a.shape != b.shape:
            return f"has the shape {list(a.shape)}, and {list(b.shape)} in the float model"
        finite = torch.isfinite(b)
        a, b = a[finite].double(), b[finite].double()
        if not bool(torch.isfinite(a).all()):
            return "is NaN or infinite where that of the float model is finite"
        if not b.numel() or torch.equal(a, b):
            scale = 1.0
        else:
            scale = largest_magnitude(b, a == b)
        if not scale:
            return "is not zero where that of the float model is zero"
        errors = (a - b).abs() / scale
        if errors.numel():
            self._largest[number] = max(self._largest.get(number, 0.0), float(errors.max()))
            self._means.setdefault(number, []).append((float(errors.mean()), errors.numel()))
        return None

    def result(self) -> FloatError:
        outputs = [
            OutputError(output=number, largest=largest, mean=_weighted_mean(self._means[number]))
            for number, largest in sorted(self._largest.items())
        ]
        return FloatError(outputs=outputs, unknown=self._unknown)


def _weighted_mean(means: Sequence[tuple[float, int]]) -> float:
    """Return the mean of all numbers. `means` has (mean, number of values) of each group."""
    return sum(mean * count for mean, count in means) / sum(count for _, count in means)
