"""Two linear layers, and between them a stable sort, which PyTorch's ONNX exporter cannot translate."""

import torch


class ThreeParts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = torch.nn.Linear(64, 64)
        self.after = torch.nn.Linear(64, 16)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.before(x))
        x = torch.sort(x, dim=-1, stable=True).values
        return torch.tanh(self.after(x))
