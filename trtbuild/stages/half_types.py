"""float16 and bfloat16, the floating types of 16 bits. PyTorch computes many of their operators in float32, and rounds the
result."""

from __future__ import annotations

import torch

HALF_TYPES = (torch.float16, torch.bfloat16)
