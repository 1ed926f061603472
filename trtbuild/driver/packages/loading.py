"""`trtbuild.load`: open a package, choose the target for this machine, and verify the needed files.

Engines are loaded later, by the method `module` of the result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtbuild.driver.packages.custom_operators import require_cpu_kernels, require_operators
from trtbuild.driver.packages.custom_plugins import require_permission
from trtbuild.driver.packages.machine import gpu_number, this_machine
from trtbuild.errors import NoFittingTarget, UsageError
from trtbuild.runtime.calls.loaded import Loaded, needed_files
from trtbuild.runtime.packages.choice import choose_target
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.toolchain.libraries import devices


def load(
    path: str | os.PathLike[str],
    *,
    device: Any = None,
    target: str | None = None,
    verify: bool = True,
    follow_links: bool = False,
    import_operators: bool = False,
    load_plugins: bool = False,
) -> Any:
    """Open the package in the directory `path`, and verify the files that will run.

    The result is a `Loaded`. `path` may also be a ``.pt2`` or ``.ep`` file that trtbuild wrote. Then the result has the
    method `module` and the attribute `exported`, the program of torch.export. Load such a file only if you trust its
    source. Only `device` and `target` apply to it.

    * `device`: a GPU (``"cuda"``, ``"cuda:1"``, a number, a ``torch.device``) or ``"cpu"``. None is the current GPU. On the
      CPU, PyTorch runs the package's reference program (for an ONNX model: onnxruntime), and no engine runs. A package
      without engines runs on the CPU even if it has no reference program.
    * `target`: one of the package's targets. The default is the target for the GPU.
    * `verify`: False skips the check of the files' digests. Use it only for files that no other user can write.
    * `follow_links`: whether symbolic links in the package may lead out of it. Otherwise such a link is an error. The
      directory itself may always be a link.
    * `import_operators`: whether to import the modules of the operators from outside PyTorch that the package calls. This
      runs the modules' code. Otherwise the caller must import them first.
    * `load_plugins`: whether to load the package's library of TensorRT plugins. This runs the library's code. Otherwise,
      loading such a package for a GPU is an error.

    Raises PackageMissing, PackageDamaged, PackageTooNew, LinkRefused, NoFittingTarget, OperatorMissing, PluginsNotLoaded,
    PluginError, and UsageError. The causes of a UsageError are an unknown device, a `target` for a package with
    ``device="cpu"``, a `target` that a ``.pt2`` file is not for, and a ``.pt2`` file that trtbuild did not write.
    """
    if _is_pt2_file(path):
        from trtbuild.driver.packages.exported_file import load_file

        return load_file(path, device=device, target=target)
    package = open_package(path, follow_links=follow_links)
    return load_package(
        package,
        device=device,
        target=target,
        verify=verify,
        import_operators=import_operators,
        load_plugins=load_plugins,
    )


def _is_pt2_file(path: Any) -> bool:
    """Whether `path` names a ``.pt2`` or ``.ep`` file, and not a package directory with such a name."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return name.endswith((".pt2", ".ep")) and not Path(name).is_dir()


def load_package(
    package: Package,
    *,
    device: Any = None,
    target: str | None = None,
    verify: bool = True,
    import_operators: bool = False,
    load_plugins: bool = False,
) -> Loaded:
    """Load a package that is already open, as `load` does."""
    ordinal = gpu_number(device)
    if ordinal is None:
        require_operators(package.index.operators, package.index.model, import_modules=import_operators)
        return _load_on_cpu(package, target, verify)
    return _load_on_gpu(package, ordinal, target, verify, import_operators, load_plugins)


def _load_on_cpu(package: Package, target: str | None, verify: bool) -> Loaded:
    if target is not None:
        raise UsageError(
            f'target {target!r} was given with device="cpu", which runs no engine', hint="leave one of the two out"
        )
    require_cpu_kernels(package.index.operators, package.index.model)
    files = package.read(needed_files(package, None), verify=verify)
    return Loaded(package, None, files, None, "cpu")


def _load_on_gpu(
    package: Package, ordinal: int, target: str | None, verify: bool, import_operators: bool, load_plugins: bool
) -> Loaded:
    require_permission(package.index, load_plugins=load_plugins)
    if package.index.plugins is None:  # with plugins, the operators depend on the target (see below)
        require_operators(package.index.operators, package.index.model, import_modules=import_operators)
    sms = devices.device_sms()
    if sms and ordinal >= len(sms):
        raise NoFittingTarget(
            f"there is no GPU {ordinal}: this machine has {len(sms)}", hint=f"devices are cuda:0 to cuda:{len(sms) - 1}"
        )
    chosen_target = choose_target(package.index, this_machine(sms[ordinal] if sms else None, ordinal), target)
    if package.index.plugins is not None:
        operators = package.index.operators_for(chosen_target)
        require_operators(operators, package.index.model, import_modules=import_operators)
    files = package.read(needed_files(package, chosen_target), verify=verify)

    def engines() -> Any:
        from trtbuild.driver.packages.engines import PackageEngines

        return PackageEngines(package, chosen_target, ordinal, verify=verify)

    return Loaded(package, chosen_target, files, engines, f"cuda:{ordinal}")
