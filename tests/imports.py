"""Imports a module of a project into the process of the tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def import_from(folder: str | Path, name: str) -> ModuleType:
    """Import the module `name`, and the packages that contain it, from `folder`.

    Projects of the tests have packages of the same name, such as ``models``. So modules of this package that another test
    has imported are hidden during the import. Afterwards, `sys.modules` and `sys.path` are as they were.
    """
    package = name.partition(".")[0]
    modules_before = _remove_modules(package)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        _remove_modules(package)
        sys.modules.update(modules_before)


def _remove_modules(package: str) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}
