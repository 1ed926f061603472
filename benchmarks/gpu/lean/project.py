"""Write the project of `benchmarks.gpu.lean`: one network with three sets of builder settings.

One engine needs the TensorRT version that built it. Two are version-compatible: one contains the lean runtime, the other
does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.project import BUILT_IN_CONVOLUTIONS, Hardware
from benchmarks.projects import write

_MANIFEST = """\
version: 1
include: [targets.yaml]
defaults: {{targets: [gpu], profiles: [small, large]}}
profiles:
  small:
    image: {{min: [1, 3, 16, 16], opt: [2, 3, 32, 32], max: [4, 3, 64, 64]}}
  large:
    image: {{min: [1, 3, 64, 64], opt: [8, 3, 128, 128], max: [16, 3, 256, 256]}}
models:
"""
_NETWORK = """\
  {name}:
    source: {{python: "models.network:build"}}
    inputs: {{image: {{}}}}
    dims: {{height: {{at: [image.2], multiple_of: 16}}, width: {{at: [image.3], multiple_of: 16}}}}
    {builder}
"""
_SOURCE = '''\
import torch


class Network(torch.nn.Module):
    """Convolutions, matrix products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.ReLU()
        )
        self.head = torch.nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(image)
        return self.head(features.mean((2, 3))).softmax(-1), features


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return Network().eval()
'''


#: The name of a model → its builder settings.
MODELS = {
    "exact": (),
    "compatible": ("version_compatible: true",),
    "without_lean": ("version_compatible: true", "exclude_lean_runtime: true"),
}


def write_lean(folder: Path, hardware: Hardware) -> Path:
    if hardware.tactic_sources is not None:
        hardware = replace(hardware, tactic_sources=BUILT_IN_CONVOLUTIONS)
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    write(folder / "manifests" / "models" / "network.py", _SOURCE)
    networks = [_NETWORK.format(name=name, builder=hardware.builder(*settings)) for name, settings in MODELS.items()]
    write(folder / "manifests" / "lean.yaml", _MANIFEST.format() + "".join(networks))
    return folder
