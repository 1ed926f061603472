"""Measure the error of a quantized model against the float model, which is the same program without quantizers.

Rules
1. The float model is the traced program without quantizers. A package has no traced program, so there it is the programs of
   the partitions without quantizers, which compute in the precision of the model.
2. Weights that are stored as quantized numbers have no floats in the program. Then the float model has the rounded weights,
   and the report says that their error is not known. If the model has no other quantizers, nothing is measured.
3. The error of an output is max|a-b| / max|b|, and its mean is mean|a-b| / max|b|, where b is the float model's output.
   Only numbers of floating types that are finite in both are compared.
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
    """The float model of a quantized model. `run` computes its outputs for inputs; None if nothing can be measured.

    `unknown` continues "the error is": it says which part of the error is not known. It is empty if all is known."""

    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None
    unknown: str


def unknown_part(programs: Sequence[Unquantized]) -> str:
    """The part of the error that the programs without quantizers do not show."""
    stored = dict.fromkeys(type_ for program in programs for type_ in program.stored)
    left = dict.fromkeys(name for program in programs for name in program.left)
    texts = [f"unknown for weights, which are stored as {' and '.join(stored)} without their floats"] if stored else []
    texts += [f"unknown for {', '.join(left)}, which cannot be removed"] if left else []
    return "; ".join(texts)


class FloatErrors:
    """Collects the errors of all points."""

    def __init__(self, model: FloatModel) -> None:
        self._model = model
        self._unknown = model.unknown
        self._largest: dict[int, float] = {}
        self._means: dict[int, list[tuple[float, int]]] = {}

    def add(self, ours: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Compare the results `ours` of the quantized model for `inputs`."""
        if self._model.run is None:
            return
        try:
            expected = self._model.run(inputs)
        except Exception as error:  # an operator may raise any error
            first_line = (str(error).splitlines() or [""])[0]
            self._unknown = f"unknown, because the float model fails: {type(error).__name__}: {first_line}"
            return
        for number, (a, b) in enumerate(zip(ours, expected, strict=True)):
            if not b.is_floating_point() or a.shape != b.shape or not b.numel():
                continue
            a, b = a.double(), b.double()
            finite = torch.isfinite(a) & torch.isfinite(b)
            a, b = a[finite], b[finite]
            scale = largest_magnitude(b, a == b) if b.numel() else 0.0
            if scale:
                errors = (a - b).abs() / scale
                self._largest[number] = max(self._largest.get(number, 0.0), float(errors.max()))
                self._means.setdefault(number, []).append((float(errors.mean()), errors.numel()))

    def result(self) -> FloatError:
        """The errors over all points."""
        outputs = [
            OutputError(output=number, largest=largest, mean=_weighted_mean(self._means[number]))
            for number, largest in sorted(self._largest.items())
        ]
        return FloatError(outputs=outputs, unknown=self._unknown)


def _weighted_mean(means: Sequence[tuple[float, int]]) -> float:
    """The mean of numbers, from the means of groups and the sizes of the groups."""
    return sum(mean * count for mean, count in means) / sum(count for _, count in means)
