"""Compile small modules that are in no cache, one after the other in one process.

Usage: ``python compile_modules.py CACHE COUNT``. Prints a line for each module: the seconds of `trtbuild.compile`, and
the seconds of torch.export.export, which runs first.
"""

import sys
import time

import torch

import trtbuild


class Small(torch.nn.Module):  # type: ignore[misc]
    """Two linear layers. Each width gives another graph, so that the cache has no result for the module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, width), torch.nn.Linear(width, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def main(cache: str, count: int) -> None:
    for number in range(count):
        module, example = Small(32 + 16 * number).eval(), torch.randn(4, 64)
        started = time.perf_counter()
        torch.export.export(module, (example,))
        exported = time.perf_counter()
        trtbuild.compile(module, [example], target=89, device="cpu", cache_dir=cache)
        print(time.perf_counter() - exported, exported - started, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
