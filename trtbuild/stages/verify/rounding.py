"""Find the values of a result that rounding decides. They cannot be compared.

`argmax` of two nearly equal numbers, ``x > 0.5``, and the integer part of 2.9999: the last bit of a number changes such a
result completely, and two right programs differ in last bits.

Rules
1. If results differ too much, the reference runs again, at most `RUNS` times. Each time, its floating-point inputs and
   weights are multiplied by random factors from 1 - `amount` to 1 + `amount`. `amount` is the tolerance of the output.
2. An integer or a bool that changes in one of these runs is decided by rounding. So is a floating-point number that
   moves by more than `TIMES` x `amount` of the largest number. Such numbers are behind a decision (``where``, ``round``,
   `topk`), or the model amplifies errors too much for a comparison.
3. If the shape of an output changes (``nonzero``), all its values are decided by rounding.
4. Zeros stay zeros, and an input stays within its smallest and largest value. So special cases at zero and at the ends of
   a range are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from trtbuild.stages.verify.comparing import Gap, gap

#: The largest number of additional runs. A value near a decision changes in about half of them.
RUNS = 16

#: A difference of more than this many tolerances is not rounding. Each operator adds some.
TIMES = 10

Tensors = Sequence[torch.Tensor]

#: Inputs, weights → the outputs of the reference.
Run = Callable[[Tensors, Tensors], Tensors]


@dataclass(frozen=True)
class Again:
    """The reference, and the inputs and weights that it ran on."""

    run: Run
    inputs: Tensors
    weights: Tensors

    def __call__(self, number: int, amount: float) -> Tensors | None:
        """The outputs of run `number` on moved inputs and weights (rule 1); None if the reference fails on them."""
        generator = torch.Generator().manual_seed(number)
        inputs = [_within(_moved(value, amount, generator), value) for value in self.inputs]
        weights = [_moved(value, amount, generator) for value in self.weights]
        try:
            return self.run(inputs, weights)
        except Exception:  # an operator may raise any error, for example for an index out of range
            return None


def gaps(ours: Tensors, theirs: Tensors, tolerances: Sequence[float], again: Again, *, times: float = 1) -> list[Gap]:
    """Compare each output with the reference's, `theirs`, and leave out the values that rounding decides.

    The reference runs again only if an error is more than `times` the tolerance of its output.
    """
    found = [gap(a, b) for a, b in zip(ours, theirs, strict=True)]
    undecided = [torch.zeros(b.shape, dtype=torch.bool) for b in theirs]
    for number in range(RUNS):
        wrong = [k for k, tolerance in enumerate(tolerances) if not found[k].error <= times * tolerance]
        for amount in {tolerances[k] for k in wrong}:
            moved = again(number, amount)
            if moved is None:
                continue
            for k in wrong:
                if tolerances[k] == amount:
                    undecided[k] |= _changes(moved[k], theirs[k], amount)
                    found[k] = gap(ours[k], theirs[k], undecided[k])
        if not wrong:
            break
    return found


def _moved(value: torch.Tensor, amount: float, generator: torch.Generator) -> torch.Tensor:
    if not (value.is_floating_point() or value.is_complex()):
        return value
    factors = torch.rand(value.shape, generator=generator).mul_(2 * amount).add_(1 - amount)
    # products of eight-bit types are not implemented
    wide = value if value.element_size() > 1 else value.float()
    return (wide * factors).to(value.dtype)


def _within(moved: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`moved` between the smallest and largest number of `value`; unchanged where they are the same number."""
    if not value.is_floating_point() or value.element_size() == 1 or not value.numel():
        return moved
    least, most = value.aminmax()
    return moved.clamp(least, most) if bool(least < most) else moved


def _changes(moved: torch.Tensor, theirs: torch.Tensor, amount: float) -> torch.Tensor:
    """The places where `moved` differs too much (rules 2 and 3)."""
    if moved.shape != theirs.shape:
        return torch.ones(theirs.shape, dtype=torch.bool)
    same = (moved == theirs) | (torch.isnan(moved) & torch.isnan(theirs))
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return ~same
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    finite = torch.isfinite(theirs)
    largest = theirs[finite].to(wide).abs().max() if bool(finite.any()) else torch.tensor(0.0)
    near = (moved.to(wide) - theirs.to(wide)).abs() <= TIMES * amount * largest
    return ~(same | near)
