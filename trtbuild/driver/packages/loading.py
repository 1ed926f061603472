"""`trtbuild.load`: open a package, choose the target for this machine, read and verify its files.

`module()` loads the engines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
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
) -> Any:
    """Open the package in directory `path`, and verify the files that will run.

    The result is a `Loaded`. `path` may also be a ``.pt2`` or ``.ep`` file that `trtbuild.save` wrote. The result then has
    `module()`, and `exported`, the program of torch.export. Load such a file only if you trust its source.

    * `device`: a GPU (``"cuda"``, ``"cuda:1"``, a number, a ``torch.device``) or ``"cpu"``. None is the current GPU. On the
      CPU, PyTorch runs the package's reference program, and no engine runs. A package without engines also runs on the
      CPU if it has no reference program.
    * `target`: one of the package's targets. The default is the target for the GPU.
    * `verify`: False skips the check of a package's digests. Use it only for files that no other user can write.
    * `follow_links`: whether symbolic links in the package may lead out of it. Otherwise such a link is an error. The
      directory itself may always be a link.

    Raises PackageMissing, PackageDamaged, PackageTooNew, LinkRefused, NoFittingTarget, and UsageError for an unknown
    device, and for a ``.pt2`` file that trtbuild did not write.
    """
    if _is_file(path):
        from trtbuild.driver.packages.exported_file import load_file

        return load_file(path, device=device, target=target)
    return load_package(open_package(path, follow_links=follow_links), device=device, target=target, verify=verify)


def _is_file(path: Any) -> bool:
    """Whether `path` names a ``.pt2`` file. A directory with such a name is a package."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return name.endswith((".pt2", ".ep")) and not Path(name).is_dir()


def load_package(package: Package, *, device: Any = None, target: str | None = None, verify: bool = True) -> Loaded:
    """Do the same as `load` for a package that is already open."""
    ordinal = gpu_number(device)
    if ordinal is None:
        return _on_the_cpu(package, target, verify)
    return _on_a_gpu(package, ordinal, target, verify)


def _on_the_cpu(package: Package, target: str | None, verify: bool) -> Loaded:
    if target is not None:
        raise UsageError(
            f'target {target!r} was given with device="cpu", which runs no engine', hint="leave one of the two out"
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
    """Return the description of this machine with the GPU number `ordinal`, for `choose_target`."""
    installed: dict[str, str | None] = {name: table.installed_version(name) for name in table.FLAVOURS}
    return Here(table.host_platform(), sm, f"GPU {ordinal}", installed)


def gpu_number(device: Any) -> int | None:
    """Return the number of the GPU `device`; None for the CPU. Raises UsageError."""
    if device is None:
        return _current()
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return None
    if kind == "cuda" and (not number or number.isdigit()):
        return int(number) if number else _current()
    raise UsageError(
        f"{device!r} is not a device", hint='devices are "cpu", "cuda", "cuda:0", … or the number of a GPU'
    )


def _current() -> int:
    """Return PyTorch's current GPU if PyTorch is loaded and has a GPU; otherwise 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0
