"""Models of operator calls whose direct translation into ONNX is wrong, or which TensorRT may not compute as PyTorch does.

Each model has one dynamic size. Its inputs are values for which a wrong translation gives wrong results: ties, rows that
are masked entirely, numbers near 0, large integers, and negative indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Calls:
    """The calls of a model. `run` computes its outputs. `inputs` draws its inputs for a size.

    `shapes` maps each input to its shape, as text for a manifest, in which ``n`` is the size. `sizes` are the smallest, the
    usual and the largest size. `integers` maps the inputs that are int32 to their ranges.
    """

    run: Callable[..., Tensors]
    inputs: Callable[[int, torch.Generator], Tensors]
    shapes: Mapping[str, str]
    sizes: tuple[int, int, int] = (1, 16, 64)
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def _normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _integers(low: int, high: int, *shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int32)


def _negative_scale(x: torch.Tensor) -> Tensors:
    return F.scaled_dot_product_attention(x, x.flip(1), x, scale=-0.3), F.scaled_dot_product_attention(
        x, x, x, scale=0.0
    )


def _masked_rows(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    half, mask = x.half(), y[:, None, None] > 0
    return (
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        F.scaled_dot_product_attention(half, half, half, attn_mask=mask),
    )


def _mask(n: int, generator: torch.Generator) -> Tensors:
    """Return a tensor and its mask. The first sequence is masked entirely."""
    mask = _normal(2, n, generator=generator)
    mask[0] = -mask[0].abs() - 1
    return _normal(2, 2, n, 16, generator=generator), mask


def _log_softmax(x: torch.Tensor) -> Tensors:
    return F.log_softmax(x, 1), F.log_softmax(x.half(), 1), torch.log_softmax(x, 0), F.logsigmoid(x)


def _divisions(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return (
        torch.div(x, -3, rounding_mode="floor"),
        torch.div(x, 3, rounding_mode="trunc"),
        torch.div(x, y, rounding_mode="floor"),
        torch.div(x, -y, rounding_mode="trunc"),
        torch.remainder(x, -7),
        torch.fmod(x, y),
    )


def _means(x: torch.Tensor) -> Tensors:
    return torch.mean(x, 1, dtype=torch.float32), x.sum(1), torch.cumsum(x, 0, dtype=torch.int32)


def _near_zero(x: torch.Tensor) -> Tensors:
    """Divide by `x`, because otherwise the error of a small result is not visible beside a large result."""
    return torch.expm1(x) / x, torch.log1p(x) / x, torch.sinh(x) / x, torch.tanh(x) / x


def _small(n: int, generator: torch.Generator) -> Tensors:
    return (
        torch.rand(n, 6, generator=generator).add(0.1) * 10.0 ** -torch.randint(0, 10, (n, 6), generator=generator),
    )


def _negative_sizes(x: torch.Tensor) -> Tensors:
    n = x.shape[0]
    return x * -(-n // 2), x * ((3 - n) // 4), x + (3 - n) % 4, x[-(-n // 2) :], x + (n - 5) // -3


def _average_pools(x: torch.Tensor) -> Tensors:
    return (
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(x, (2, 3), (3, 2), (1, 0), ceil_mode=True, count_include_pad=True),
        F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    )


def _stable_sorts(x: torch.Tensor) -> Tensors:
    return (
        *torch.sort(x, dim=0, stable=True),
        *torch.sort(x, dim=0, stable=True, descending=True),
        torch.argsort(x, dim=1, stable=True),
    )


def _ties(n: int, generator: torch.Generator) -> Tensors:
    return (torch.randint(0, 4, (n, 6), generator=generator).float(),)


def _negative_indices(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return x[y], x[:, y], x[y, y], x.index_put((y,), x[0] * 2), x[-1], x[:, -2:]


def _interpolations(x: torch.Tensor, mode: str) -> Tensors:
    scaled = (F.interpolate(x, scale_factor=scale, mode=mode) for scale in (1.7, 2.0, 2.5))
    return *scaled, F.interpolate(x, size=13, mode=mode)


def _nearest_exact(x: torch.Tensor) -> Tensors:
    return _interpolations(x, "nearest-exact")


def _nearest(x: torch.Tensor) -> Tensors:
    return _interpolations(x, "nearest")


def _linear(x: torch.Tensor) -> Tensors:
    return (
        F.interpolate(x, scale_factor=1.7, mode="linear"),
        F.interpolate(x, size=13, mode="linear"),
        F.interpolate(x, size=13, mode="linear", align_corners=True),
    )


def _rounding(x: torch.Tensor) -> Tensors:
    return (
        torch.round(x),
        x.int(),
        torch.floor(x),
        torch.remainder(x, -1.5),
        torch.fmod(x, 1.5),
        torch.remainder(x, 1.5),
    )


def _quarters(n: int, generator: torch.Generator) -> Tensors:
    return (_integers(-40, 40, n, 6, generator=generator).float() / 4,)


def _not_a_number(x: torch.Tensor) -> Tensors:
    """Call operators with NaN. relu, clamp and maxima are left out: TensorRT 8.6 ignores NaN in them (docs/verify.md)."""
    return torch.nan_to_num(x, 1.0, 2.0, -3.0), torch.where(x > 0, x, 0.0), torch.isnan(x)


def _with_special_values(n: int, generator: torch.Generator) -> Tensors:
    x = _normal(n, 6, generator=generator)
    choice = torch.randint(0, 8, (n, 6), generator=generator)
    for number, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        x = x.masked_fill(choice == number, value)
    return (x,)


def _log_sums(x: torch.Tensor) -> Tensors:
    return torch.logsumexp(x, 1), torch.logsumexp(x, (0, 1)), torch.logsumexp(x, 0, keepdim=True)


def _infinite_keys(x: torch.Tensor) -> Tensors:
    """Return the elements at the indices, with 0 in place of infinite elements.

    The indices are not compared, because PyTorch does not define the order of equal elements.
    """
    searches = (torch.topk(x, 6, 1), torch.topk(x, 6, 1, largest=False), torch.sort(x, 1), torch.sort(x, 1, True))
    places = (x.argmax(1, keepdim=True), x.argmin(1, keepdim=True), x.max(1, True)[1], x.min(1, True)[1])
    indices = (*(search.indices for search in searches), *places)
    return tuple(torch.isfinite(x.gather(1, index)) * x.gather(1, index).nan_to_num() for index in indices)


def _with_infinities(n: int, generator: torch.Generator) -> Tensors:
    """Return rows with infinities. All elements of the first row are -inf, and all of the last row are inf."""
    x = _normal(n, 6, generator=generator)
    choice = torch.randint(0, 4, (n, 6), generator=generator)
    x = x.masked_fill(choice == 0, -torch.inf).masked_fill(choice == 1, torch.inf)
    x[0], x[-1] = -torch.inf, torch.inf
    return (x,)


def _crossed_bounds(x: torch.Tensor) -> Tensors:
    return x.clamp(5, 2), x.clamp(0.5, -0.5), torch.clip(x, 3, 1.5), x.half().clamp(1, -1)


_ROWS = "[n, 6]"
_LINE = "[2, 3, n]"

#: The name of a model → its calls.
CALLS: Mapping[str, Calls] = {
    "negative_scale": Calls(_negative_scale, lambda n, g: (_normal(2, 3, n, 16, generator=g),), {"x": "[2, 3, n, 16]"}),
    "masked_rows": Calls(_masked_rows, _mask, {"x": "[2, 2, n, 16]", "y": "[2, n]"}),
    "log_softmax": Calls(_log_softmax, lambda n, g: (_normal(n, 6, generator=g) * 60,), {"x": _ROWS}),
    "integer_division": Calls(
        _divisions,
        lambda n, g: (_integers(-(2**30), 2**30, n, 6, generator=g), _integers(1, 9, n, 6, generator=g)),
        {"x": _ROWS, "y": _ROWS},
        integers={"x": (-(2**30), 2**30), "y": (1, 9)},
    ),
    "mean_of_integers": Calls(
        _means, lambda n, g: (_integers(-9, 9, n, 6, generator=g),), {"x": _ROWS}, integers={"x": (-9, 9)}
    ),
    "near_zero": Calls(_near_zero, _small, {"x": _ROWS}),
    "negative_sizes": Calls(_negative_sizes, lambda n, g: (_normal(n, 6, generator=g),), {"x": _ROWS}, (2, 16, 64)),
    "average_pools": Calls(_average_pools, lambda n, g: (_normal(n, 3, 9, 8, generator=g) + 1,), {"x": "[n, 3, 9, 8]"}),
    "stable_sorts": Calls(_stable_sorts, _ties, {"x": _ROWS}, (2, 16, 64)),
    "negative_indices": Calls(
        _negative_indices,
        lambda n, g: (_normal(n, 6, generator=g), torch.tensor([-1, -2, 3, 0, -6], dtype=torch.int32)),
        {"x": _ROWS, "y": "[5]"},
        (6, 16, 64),
        {"y": (-6, 5)},
    ),
    "nearest_exact": Calls(_nearest_exact, lambda n, g: (_normal(2, 3, n, generator=g),), {"x": _LINE}, (2, 16, 64)),
    "nearest": Calls(_nearest, lambda n, g: (_normal(2, 3, n, generator=g),), {"x": _LINE}, (2, 16, 64)),
    "linear": Calls(_linear, lambda n, g: (_normal(2, 3, n, generator=g),), {"x": _LINE}, (2, 16, 64)),
    "rounding": Calls(_rounding, _quarters, {"x": _ROWS}),
    "log_sums": Calls(_log_sums, lambda n, g: (_normal(n, 6, generator=g) * 60,), {"x": _ROWS}),
    "infinite_keys": Calls(_infinite_keys, _with_infinities, {"x": _ROWS}, (2, 16, 64)),
    "crossed_bounds": Calls(_crossed_bounds, lambda n, g: (_normal(n, 6, generator=g),), {"x": _ROWS}),
    "not_a_number": Calls(_not_a_number, _with_special_values, {"x": _ROWS}),
}


class _Model(nn.Module):  # type: ignore[misc]
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def forward(self, x: torch.Tensor) -> Tensors:
        return self._calls.run(x)


class _ModelOfTwoInputs(_Model):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Tensors:  # type: ignore[override]
        return self._calls.run(x, y)


def build(name: str) -> nn.Module:
    calls = CALLS[name]
    return (_Model if len(calls.shapes) == 1 else _ModelOfTwoInputs)(calls).eval()
