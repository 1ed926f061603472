"""The machine that runs packages: its installed toolchains, and the number of the GPU that a program chooses."""

from __future__ import annotations

import sys
from typing import Any

from trtbuild.errors import UsageError
from trtbuild.runtime.packages.choice import Machine
from trtbuild.toolchain.libraries import table


def this_machine(sm: int | None, ordinal: int = 0) -> Machine:
    """Return the description of this machine for `choose_target`. `sm` and `ordinal` are the SM and number of the GPU."""
    installed: dict[str, str | None] = {name: table.installed_version(name) for name in table.FLAVOURS}
    return Machine(table.host_platform(), sm, f"GPU {ordinal}", installed)


def gpu_number(device: Any) -> int | None:
    """Return the number of the GPU `device`; None for the CPU. Raises UsageError."""
    if device is None:
        return _current_gpu_number()
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return None
    if kind == "cuda" and (not number or number.isdigit()):
        return int(number) if number else _current_gpu_number()
    raise UsageError(
        f"{device!r} is not a device", hint='devices are "cpu", "cuda", "cuda:0", … or the number of a GPU'
    )


def _current_gpu_number() -> int:
    """Return the number of PyTorch's current GPU if PyTorch is loaded and has a GPU; otherwise 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0
