"""`trtbuild.load`: open a package, choose what runs here, read and verify it. Engines are made by `module()`."""

from __future__ import annotations

import os
import sys
from typing import Any

from trtbuild.errors import NoFittingTarget, UsageError
from trtbuild.runtime.calls.loaded import Loaded, needed_files
from trtbuild.runtime.packages.choice import Here, choose_target
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.toolchain.libraries import devices, table


def load(
    path: str | os.PathLike[str],
    *,
    device: Any = None,
    target: str | None = None,
    verify: bool = True,
    follow_links: bool = False,
) -> Loaded:
    """Open the package in directory `path` and verify what will run.

    `device` is a GPU (``"cuda"``, ``"cuda:1"``, a number, a ``torch.device``) or ``"cpu"``, where PyTorch computes the
    reference program and no engine runs; a package that PyTorch computes wholly needs none for that. None is the current
    GPU. `target` names one of the package's targets; without it the one for the GPU is taken. `verify=False` leaves hashing
    out: for files that nobody else can write. A symbolic link in the package that leads out of it is refused, unless
    `follow_links` is said; the directory itself may be one.

    Raises PackageMissing, PackageDamaged, PackageTooNew, LinkRefused, NoFittingTarget, and UsageError for a device that
    means nothing.
    """
    return load_package(open_package(path, follow_links=follow_links), device=device, target=target, verify=verify)


def load_package(package: Package, *, device: Any = None, target: str | None = None, verify: bool = True) -> Loaded:
    """As `load`, of a package that is open already."""
    ordinal = gpu_number(device)
    if ordinal is None:
        return _on_the_cpu(package, target, verify)
    return _on_a_gpu(package, ordinal, target, verify)


def _on_the_cpu(package: Package, target: str | None, verify: bool) -> Loaded:
    if target is not None:
        raise UsageError(
            f'target {target!r} was named with device="cpu", where no engine runs', hint="leave one of the two out"
        )
    files = package.read(needed_files(package, None), verify=verify)
    return Loaded(package, None, files, None, "cpu")


def _on_a_gpu(package: Package, ordinal: int, target: str | None, verify: bool) -> Loaded:
    sms = devices.device_sms()
    if sms and ordinal >= len(sms):
        raise NoFittingTarget(
            f"there is no GPU {ordinal}: this machine has {len(sms)}", hint=f"devices are cuda:0 to cuda:{len(sms) - 1}"
        )
    chosen = choose_target(package.index, here(sms[ordinal] if sms else None, ordinal), target)
    files = package.read(needed_files(package, chosen), verify=verify)

    def engines() -> Any:
        from trtbuild.driver.packages.engines import Engines

        return Engines(package, chosen, ordinal)

    return Loaded(package, chosen, files, engines, f"cuda:{ordinal}")


def here(sm: int | None, ordinal: int = 0) -> Here:
    """This machine, with the GPU of number `ordinal`."""
    installed: dict[str, str | None] = {name: table.installed_version(name) for name in table.FLAVOURS}
    return Here(table.host_platform(), sm, f"GPU {ordinal}", installed)


def gpu_number(device: Any) -> int | None:
    """The number of the GPU that `device` names; None for the CPU. Raises UsageError."""
    if device is None:
        return _current()
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return None
    if kind == "cuda" and (not number or number.isdigit()):
        return int(number) if number else _current()
    raise UsageError(f"{device!r} is no device", hint='devices are "cpu", "cuda", "cuda:0", … or the number of a GPU')


def _current() -> int:
    """The current GPU of PyTorch, where it is loaded and has one; else the first."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0
