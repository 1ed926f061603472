"""A Triton kernel. operators.py imports this file only on a machine with a GPU."""

import torch
import triton
import triton.language as tl


@triton.jit
def _twice(source, result, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    tl.store(result + places, 2 * tl.load(source + places, mask=inside), mask=inside)


def twice(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    result = torch.empty_like(x)
    _twice[(triton.cdiv(x.numel(), 1024),)](x, result, x.numel(), block=1024)
    return result
