"""The machine that runs packages: its installed libraries and its GPU."""

from __future__ import annotations

import sys
from typing import Any

from trtbuild.core.packages.engine_libraries import EngineLibrary, choose_library, library_problem
from trtbuild.core.packages.package_index import PackedTarget
from trtbuild.errors import NoFittingTarget, UsageError
from trtbuild.runtime.packages.choice import Machine
from trtbuild.toolchain.libraries import runtimes, table


def this_machine(sm: int | None, ordinal: int = 0) -> Machine:
    """Return the description of this machine for `choose_target`. Its GPU has the number `ordinal` and the SM `sm`."""
    return Machine(table.host_platform(), sm, f"GPU {ordinal}", runtimes.installed_libraries())


def library_for(target: PackedTarget) -> EngineLibrary:
    """Return the installed library that runs the engines of `target`. Raises NoFittingTarget."""
    installed = runtimes.installed_libraries()
    library = choose_library(target, installed)
    if library is None:
        reason, hint = library_problem(target, installed)
        raise NoFittingTarget(f"no installed library runs the engines of target {target.name!r}: {reason}", hint=hint)
    return library


def gpu_number(device: Any) -> int | None:
    """Return the number of the GPU `device`; None for the CPU. Raises UsageError for any other device."""
    if device is None:
        return _current_gpu_number()
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return None
    if kind == "cuda" and (not number or number.isdecimal()):
        return int(number) if number else _current_gpu_number()
    raise UsageError(
        f"{device!r} is not a device", hint='devices are "cpu", "cuda", "cuda:0", … or the number of a GPU'
    )


def _current_gpu_number() -> int:
    """Return the number of PyTorch's current GPU; 0 if PyTorch is not loaded or has no GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0
