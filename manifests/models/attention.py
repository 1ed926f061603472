"""Attention scores of queries and keys of the same sequence length."""

import torch


class Scores(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.matmul(query, key.transpose(2, 3)) / query.shape[-1] ** 0.5
