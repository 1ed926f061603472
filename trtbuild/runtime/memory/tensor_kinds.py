"""Handle torch tensors whose memory does not contain their values: some kinds are copied, the others are refused.

Rules
1. PyTorch negates some tensors only when it reads them (``is_neg``), such as the imaginary part of a conjugate. Such a
   tensor is copied with its negated values, even if it is contiguous.
2. Sparse, nested and mkldnn tensors are refused, because they do not store their values as one array with strides. The
   checks of dtypes and devices already refuse quantized tensors, conjugates (complex) and meta tensors.
3. An engine needs a tensor with memory. So FakeTensors, tensors inside ``torch.vmap`` and similar functions, and subclasses
   without their own memory are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtbuild.errors import CallRefused

if TYPE_CHECKING:
    import torch


def needs_materializing(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is negated only when it is read (rule 1), or has no strides (rule 2)."""
    import torch

    return bool(tensor.is_neg() or tensor.layout != torch.strided or tensor.is_nested)


def materialize(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return `tensor`, or a copy with negated values (rule 1). Raises CallRefused for a tensor without strides (rule 2)."""
    import torch

    if tensor.is_nested:
        raise CallRefused(
            f"{name} is a nested tensor, which does not have a single shape",
            hint="pass its tensors one after the other, or padded: torch.nested.to_padded_tensor(tensor, 0.0)",
        )
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").lstrip("_")
        raise CallRefused(f"{name} is a tensor of layout {kind}", hint="make it dense: tensor.to_dense()")
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.is_neg() else tensor


def require_memory(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return `tensor` if it has memory (rule 3). Otherwise raise CallRefused."""
    try:
        has_memory = bool(tensor.data_ptr()) or not tensor.numel()
    except RuntimeError:
        has_memory = False
    if not has_memory:
        raise no_memory_error(tensor, name)
    return tensor


def no_memory_error(tensor: object, name: str) -> CallRefused:
    return CallRefused(
        f"{name} is a {type(tensor).__name__} without memory that an engine could read",
        hint="pass an ordinary tensor, and call outside of torch.vmap, torch.func and FakeTensorMode",
    )
