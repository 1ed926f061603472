"""Exports manifests/programs/mlp.pt2, an example of a program that was exported without trtbuild.

Run this file with python.
"""

from pathlib import Path

import torch
from torch.export import Dim, export, save


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()
    batch = Dim("batch", min=1, max=128)
    program = export(model, (torch.randn(2, 32),), dynamic_shapes=({0: batch},))
    path = Path(__file__).parent / "programs" / "mlp.pt2"
    path.parent.mkdir(exist_ok=True)
    save(program, path)


if __name__ == "__main__":
    main()
