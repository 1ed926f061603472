"""`PackageEngines`: the engines of a package on a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.driver.packages import engines
from trtbuild.runtime.engines.runtime_cache import Gpu
from trtbuild.runtime.packages.inside import PackageFolder


def test_the_kernel_file_is_in_the_package_directory_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may change its working directory between `load` and `module`."""
    monkeypatch.setattr(engines, "library_for", lambda target: None)
    monkeypatch.setattr(engines, "load_library", lambda name: SimpleNamespace(name="tensorrt-rtx", version="1.7"))
    monkeypatch.setattr(engines, "load_plugins", lambda *_, verify: None)
    monkeypatch.setattr(engines, "find_gpu", lambda ordinal: Gpu("H200", 90, 13000))
    monkeypatch.setattr(engines, "choose_memory", lambda ordinal: None)
    (tmp_path / "net").mkdir()
    monkeypatch.chdir(tmp_path)
    package: Any = SimpleNamespace(path=Path("net"), folder=PackageFolder("net"), digest="0" * 64)
    os.chdir("/")
    target: Any = None
    kernel_file = engines.PackageEngines(package, target, 0)._kernel_file
    assert kernel_file is not None
    assert kernel_file._paths[0].is_relative_to(tmp_path / "net" / ".runtime")
