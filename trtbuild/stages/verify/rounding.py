"""Find those values of a result that rounding decides. They cannot be compared.

Examples are `argmax` of two nearly equal numbers, ``x > 0.5``, and the integer part of 2.9999. The last bit of a number
can change such a result, and two correct programs may differ in the last bit.

Rules
1. If results differ too much, the reference runs again, at most `MAX_RUNS` times for each tolerance. Each time, its
   floating-point and complex inputs and weights are multiplied by random factors from 1 - `amount` to 1 + `amount`.
   `amount` is the tolerance of the output.
2. If an integer or a bool changes in one of these runs, rounding decides it. Rounding also decides a floating-point number
   that changes by more than `MAX_TOLERANCES` x `amount` x the largest absolute value of the output. Such a number depends
   on a decision (``where``, ``round``, ``topk``), or the model amplifies errors too much for a comparison.
3. If the model amplifies errors (``exp`` of a large number), the reference's result may change by more than the tolerance.
   An error as large as this change is allowed, up to `MAX_AMPLIFICATION` tolerances. The limit is needed because the runs
   change each weight by up to a tolerance. Without it, a large tolerance could hide a wrong conversion.
4. If the shape of an output changes (``nonzero``), all its values are decided by rounding.
5. Zeros stay zeros. Changed values of an input stay between its smallest and its largest value, unless they are all
   equal, complex or 8-bit floats. So special cases at zero and at the ends of a range are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from trtbuild.stages.verify.comparing import Deviation, deviation

#: The most additional runs for outputs with the same tolerance. A value near a decision changes in about half of the runs.
MAX_RUNS = 16

#: A difference of more tolerances than this is not a sum of rounding errors (rule 2).
MAX_TOLERANCES = 10

#: The largest allowed error of a model that amplifies errors, in tolerances. RetinaNet (benchmarks/zoo) has 1.7.
MAX_AMPLIFICATION = 2

Tensors = Sequence[torch.Tensor]

#: Inputs, weights → the outputs of the reference.
Run = Callable[[Tensors, Tensors], Tensors]


@dataclass(frozen=True)
class PerturbedRuns:
    """Runs the reference again on slightly changed `inputs` and `weights`."""

    run: Run
    inputs: Tensors
    weights: Tensors

    def __call__(self, number: int, amount: float) -> Tensors | None:
        """Return the outputs of run `number` (rule 1); None if the reference fails on the changed values."""
        generator = torch.Generator().manual_seed(number)
        inputs = [_clamp_to_range(_perturb(value, amount, generator), value) for value in self.inputs]
        weights = [_perturb(value, amount, generator) for value in self.weights]
        try:
            return self.run(inputs, weights)
        except Exception:  # an operator may raise any error, for example for an index out of range
            return None


def deviations(
    actual: Tensors, expected: Tensors, tolerances: Sequence[float], perturbed_runs: PerturbedRuns, *, times: float = 1
) -> list[Deviation]:
    """Compare each output with that of the reference, and leave out the values that rounding decides.

    The reference runs again only if an error is larger than `times` x the tolerance of the output.
    """
    results = [deviation(a, b) for a, b in zip(actual, expected, strict=True)]
    left_out = [torch.zeros(b.shape, dtype=torch.bool) for b in expected]
    allowed_errors = [0.0] * len(results)
    for number in range(MAX_RUNS):
        wrong = [
            k
            for k, tolerance in enumerate(tolerances)
            if not results[k].error <= max(times * tolerance, allowed_errors[k])
        ]
        for amount in {tolerances[k] for k in wrong}:  # outputs with the same tolerance share a run
            changed = perturbed_runs(number, amount)
            if changed is None:
                continue
            for k in wrong:
                if tolerances[k] == amount:
                    left_out[k] |= _decided_by_rounding(changed[k], expected[k], amount)
                    change = deviation(changed[k], expected[k], left_out[k]).error
                    if math.isfinite(change):
                        allowed_errors[k] = max(allowed_errors[k], min(change, MAX_AMPLIFICATION * amount))
                    result = deviation(actual[k], expected[k], left_out[k])
                    results[k] = replace(result, allowed_error=allowed_errors[k])
        if not wrong:
            break
    return results


def _perturb(value: torch.Tensor, amount: float, generator: torch.Generator) -> torch.Tensor:
    if not (value.is_floating_point() or value.is_complex()):
        return value
    factors = torch.rand(value.shape, generator=generator).mul_(2 * amount).add_(1 - amount)
    # products of eight-bit types are not implemented
    wide = value if value.element_size() > 1 else value.float()
    return (wide * factors).to(value.dtype)


def _clamp_to_range(changed: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return `changed`, limited to the range of `value` (rule 5). Complex numbers are not limited."""
    if not value.is_floating_point() or value.element_size() == 1 or not value.numel():
        return changed
    smallest, largest = value.aminmax()
    return changed.clamp(smallest, largest) if bool(smallest < largest) else changed


def _decided_by_rounding(changed: torch.Tensor, expected: torch.Tensor, amount: float) -> torch.Tensor:
    """Return a mask that is True where `changed` differs too much from `expected` (rules 2 and 4)."""
    if changed.shape != expected.shape:
        return torch.ones(expected.shape, dtype=torch.bool)
    same = (changed == expected) | (torch.isnan(changed) & torch.isnan(expected))
    if not (expected.is_floating_point() or expected.is_complex()):
        return ~same
    wide_dtype = torch.complex128 if expected.is_complex() else torch.float64
    finite = torch.isfinite(expected)
    largest = expected[finite].to(wide_dtype).abs().max() if bool(finite.any()) else torch.tensor(0.0)
    near = (changed.to(wide_dtype) - expected.to(wide_dtype)).abs() <= MAX_TOLERANCES * amount * largest
    return ~(same | near)
