"""Puts a class token before a sequence, and computes the queries, keys and values of a vision transformer."""

import torch


class ClassToken(torch.nn.Module):
    def __init__(self, width: int = 768, heads: int = 12, tokens: int = 196) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = torch.nn.Parameter(torch.randn(1, tokens + 1, width) * 0.02)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        x = torch.cat((self.cls_token.expand(batch, -1, -1), x), dim=1)
        x = self.qkv(x + self.pos_embed)
        return x.reshape(batch, x.shape[1], 3, self.heads, -1)
