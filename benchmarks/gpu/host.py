"""Values that all measurements share: the projects, the interpreter without torch, and this GPU host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.toolchain.libraries.table import installed_version


@dataclass(frozen=True)
class Host:
    """One run of ``python -m benchmarks.gpu measure``."""

    #: The folders of the projects that `benchmarks.gpu.project` writes.
    examples: Path
    vit: Path
    quantized: Path
    decoders: Path
    #: The path of a Python that has TensorRT, cuda-python and trtbuild's dependencies, but no torch. It may be None.
    python_without_torch: Path | None
    #: The number of random points (sizes of all dims) for each profile, and of timed calls for each measured time.
    points: int
    repeats: int
    #: The folder for files that two processes share, and for the output of each command.
    work: Path
    #: ``cuda`` or ``cpu``. With ``cpu``, PyTorch runs in place of the engines, to test the measurements.
    device: str = "cuda"

    @property
    def plugins(self) -> Path:
        return self.decoders.with_name("plugins")

    @property
    def operators(self) -> Path:
        return self.decoders.with_name("operators")

    def synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def describe(self) -> str:
        """Return the GPU, its driver and the versions of the libraries as text."""
        import torch

        if self.device != "cuda":
            return f"{self.device}: reference programs, no engine; torch {torch.__version__}"
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
        toolchains = ", ".join(
            f"{name} {version}" for name in ("tensorrt", "tensorrt-rtx") if (version := installed_version(name))
        )
        return (
            f"{gpu}; {toolchains}; torch {torch.__version__}; Python {sys.version.split()[0]}; {os.cpu_count()} cores"
        )

    def trtbuild(self, project: Path, *arguments: str, without_torch: bool = False) -> subprocess.CompletedProcess[str]:
        """Run trtbuild in a project with the project's cache. `without_torch` chooses the Python without torch."""
        return self.python(
            project, ["-m", "trtbuild", *arguments], without_torch=without_torch, cache=project / "cache"
        )

    def python(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        without_torch: bool = False,
        cache: Path | None = None,
        timeout_s: float = 580,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python in `folder`. It inherits no variables ``TRTBUILD_*``. `cache` is the folder of trtbuild's cache.

        Raises ValueError if `without_torch` is True, and there is no Python without torch.
        """
        if without_torch and self.python_without_torch is None:
            raise ValueError("name a Python without torch: --python-without-torch")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
        if cache is not None:
            environment["TRTBUILD_CACHE_DIR"] = str(cache)
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        program = self.python_without_torch if without_torch else sys.executable
        return subprocess.run(
            [str(program), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s
        )


def tolerance(precision: str) -> float:
    """Return the largest allowed error, max|a-b| / max|b|, of an engine. float32 engines may use TF32."""
    return {"float32": 1e-3, "float16": 1e-2, "bfloat16": 8e-2}[precision]
