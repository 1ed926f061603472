"""Import Model Optimizer (``modelopt.torch.quantization``), without the plugins that the model does not need.

Model Optimizer imports each installed library for which it has a plugin, such as transformers. This takes half of the time
of a calibration. A plugin adds quantizers for the layers of its library. If user code has imported none of the libraries,
the model has no such layers, so the plugins are left out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from trtbuild.errors import EnvironmentFault
from trtbuild.stages.trace.discovery.discovery import Discovery

#: Model Optimizer, and the libraries besides torch with which it computes the scales.
_DISTRIBUTIONS = ("nvidia-modelopt", "numpy", "scipy")

#: The libraries that have a plugin in ``modelopt.torch.opt.plugins`` or ``modelopt.torch.quantization.plugins``.
_PLUGIN_LIBRARIES = (
    *("accelerate", "apex", "diffusers", "fairscale", "fastvideo", "megatron", "peft", "torch_geometric"),
    *("transformer_engine", "transformers", "trl", "vllm"),
)


def import_calibrator(import_library: Callable[[str], Any] = importlib.import_module) -> Any:
    """Import Model Optimizer with `import_library`. Raises EnvironmentFault if it is not installed."""
    try:
        return import_library("modelopt.torch.quantization")
    except ImportError as error:
        raise EnvironmentFault(
            f"`quantize:` needs nvidia-modelopt, which cannot be imported: {error}",
            hint="pip install 'trtbuild[quantize]'",
        ) from error


def import_for(discovery: Discovery, name: str) -> ModuleType:
    """Import the module `name` of Model Optimizer, without its plugins if user code has imported none of their libraries.

    Call this only in a process that calibrates one model, because the plugins are not imported later either. The
    distributions with which Model Optimizer computes the scales become dependencies."""
    with _without_plugins(), _torch_compile_off():
        module = discovery.import_library(name, _DISTRIBUTIONS)
        # `quantize` of version 0.47 imports this module, which has plugins, too
        with contextlib.suppress(ImportError):
            discovery.import_library("modelopt.torch.export", _DISTRIBUTIONS)
    return module


@contextlib.contextmanager
def _torch_compile_off() -> Iterator[None]:
    """Enter a block in which the decorator `torch.compile` does nothing, so that it does not import TorchInductor.

    Model Optimizer decorates its functions that search for formats, and those that multiply quantized matrices. A
    calibration calls none of them. ``torch._dynamo.eval_frame`` reads the variable TORCHDYNAMO_DISABLE."""
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCHDYNAMO_DISABLE"]
        else:
            os.environ["TORCHDYNAMO_DISABLE"] = before


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    """Enter a block in which the plugins' libraries cannot be imported, unless one of them is imported already."""
    hidden = () if any(name in sys.modules for name in _PLUGIN_LIBRARIES) else _PLUGIN_LIBRARIES
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules.update(dict.fromkeys(hidden))  # an import raises ModuleNotFoundError for None (Python's import system)
    try:
        yield
    finally:
        for name in hidden:
            modules.pop(name, None)
