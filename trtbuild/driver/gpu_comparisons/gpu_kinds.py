"""A kind of GPU machine: the facts on which the result of a comparison on a GPU depends.

Rules
1. Some facts are in the key of a verification: platform, GPU, GPU driver, and the version of PyTorch or onnxruntime. Other
   facts decide whether engines run: the SM (GPU architecture), and the libraries that run engines.
2. This module does not import torch or TensorRT, and creates no CUDA context. So a process that only announces its GPU
   uses no memory of the GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.gpu_comparisons.versions import reference_versions
from trtbuild.runtime.packages.choice import Machine
from trtbuild.toolchain.libraries import devices, runtimes, table


@dataclass(frozen=True)
class GpuKind:
    """A GPU (`device` is its name), its driver, and the libraries of its machine.

    Both mappings lead from the name of a library to its version. `libraries` has the libraries that run engines. `versions`
    has torch and, if they are installed, onnxruntime and onnx.
    """

    platform: str
    sm: int
    device: str
    driver: str
    libraries: Mapping[str, str]
    versions: Mapping[str, str]

    def to_text(self) -> str:
        """The kind as JSON. Equal kinds have equal texts."""
        return json.dumps(encode(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> GpuKind:
        """The kind in a text. Raises ValueError."""
        try:
            return decode(cls, json.loads(text))
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a kind of GPU: {error}") from error

    @property
    def machine(self) -> Machine:
        """The argument for `choose_target`, which finds out whether engines run on this kind."""
        return Machine(self.platform, self.sm, self.device, self.libraries)

    @property
    def key_facts(self) -> Mapping[str, str]:
        """The platform, the GPU and the GPU driver, for the key of a verification."""
        return {"platform": self.platform, "device": self.device, "driver": self.driver}

    def __str__(self) -> str:
        versions = {**self.libraries, **self.versions}
        texts = [f"SM {self.sm}", f"driver {self.driver}", *(f"{name} {version}" for name, version in versions.items())]
        return f"{self.device} ({', '.join(texts)})"


def kind_here(ordinal: int) -> GpuKind | None:
    """The kind of this machine's GPU with the number `ordinal`.

    None if there is no such GPU, if PyTorch for CUDA is missing, or if no library that runs engines is installed.
    """
    device = devices.describe_gpu(ordinal)
    libraries = {name: version for name, version in runtimes.installed_libraries().items() if version is not None}
    if device is None or not libraries or not has_torch_for_cuda():
        return None
    return GpuKind(table.host_platform(), device.sm, device.name, device.driver, libraries, reference_versions())


def has_torch_for_cuda() -> bool:
    """Whether a PyTorch for CUDA is installed. Reads a file of PyTorch instead of importing torch."""
    spec = find_spec("torch")
    folders = None if spec is None else spec.submodule_search_locations
    for folder in folders or ():
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
    return False
