"""Python imports this module at startup if the module's folder is on ``PYTHONPATH``. The process then seems to have a GPU.

The labels, the jobs, the processes and the comparison with PyTorch are real. The driver of the GPU, the checks for PyTorch
with CUDA, and the engines are replaced. An engine computes with the program of its partition (`pretended_engines`).
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _devices(module: Any) -> None:
    gpu = module.Device(0, 89, "Pretended GPU", 1 << 34, "999.1")
    module.device_sms = lambda: (gpu.sm,)
    module.describe_gpu = module.use_gpu = lambda ordinal: gpu if ordinal == 0 else None


def _gpu_kinds(module: Any) -> None:
    module.has_torch_for_cuda = lambda: True


def _engines(module: Any) -> None:
    from pretended_engines import OpenEngines

    module.reason_without_torch = lambda: None
    module.OpenEngines = OpenEngines


_CHANGES: dict[str, Callable[[Any], None]] = {
    "trtbuild.toolchain.libraries.devices": _devices,
    "trtbuild.driver.gpu_comparisons.gpu_kinds": _gpu_kinds,
    "trtbuild.driver.gpu_comparisons.engines": _engines,
}


class _Finder:
    """Finds the modules of `_CHANGES`, and changes them after they were loaded."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        if name not in _CHANGES:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _CHANGES[name](module)

        spec.loader.exec_module = load_and_change
        return spec


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
