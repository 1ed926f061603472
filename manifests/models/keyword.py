"""A linear layer whose output is scaled by a keyword-only mask."""

import torch


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(10, 5)
        self.eval()

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * mask
