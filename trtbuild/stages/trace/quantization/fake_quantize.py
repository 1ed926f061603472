"""Let torch.export trace ``torch.fake_quantize_*``.

torch.export calls operators on tensors without data. ``torch.fake_quantize_*`` has no kernel for such tensors (torch 2.13).
"""

from __future__ import annotations

import functools

import torch


def _result_and_mask(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Results without values, for any of the operators below: the rounded `x`, and a mask of the same shape."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@functools.cache
def define_fake_kernels() -> torch.library.Library:
    """Define the missing kernels, once in a process. They exist as long as the returned library exists."""
    library = torch.library.Library("aten", "IMPL")
    for name in (
        "fake_quantize_per_tensor_affine_cachemask",
        "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    ):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, _result_and_mask, "Meta")
    return library
