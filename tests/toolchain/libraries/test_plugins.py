"""A plugin library is loaded once. It is refused if a required plugin is missing, or registered by another library."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.programs import program
from trtbuild.errors import PluginError
from trtbuild.toolchain.libraries import plugins
from trtbuild.toolchain.libraries.library import capture_log, load
from trtbuild.toolchain.libraries.plugins import require_plugins

#: Name, version and namespace of the plugin that the tests require.
ROI = ("RoiPlugin", "1", "")


class FakeTensorRT:
    """TensorRT with its registry of plugins. `load_library` registers `ROI`, whichever library it loads."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.registered: set[tuple[str, str, str]] = set()
        self.own = {("ROIAlign_TRT", "1", "")}

    def init_libnvinfer_plugins(self, logger: Any, namespace: str) -> None:
        self.registered |= self.own

    def get_plugin_registry(self) -> Any:
        creators = [SimpleNamespace(name=n, plugin_version=v, plugin_namespace=s) for n, v, s in self.registered]
        return SimpleNamespace(all_creators=creators, load_library=self.load_library)

    def load_library(self, path: str) -> None:
        assert Path(path).read_bytes()[:4] == b"\x7fELF"
        self.loaded.append(path)
        self.registered.add(ROI)


@pytest.fixture(autouse=True)
def _no_loaded_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_LOADED", {})


@pytest.fixture
def libraries(tmp_path: Path) -> list[bytes]:
    """The bytes of three libraries. The first two have a function by which TensorRT finds the plugins of a library."""
    contents = []
    for number, name in enumerate(("getCreators", "getPluginCreators", "nothing")):
        (tmp_path / "code.c").write_text(f"int {name}(void) {{ return {number}; }}\n")
        command = [program("g++"), "-shared", "-fPIC", "-xc", "code.c", "-o", "lib.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        contents.append((tmp_path / "lib.so").read_bytes())
    return contents


def test_a_library_is_loaded_once(libraries: list[bytes]) -> None:
    trt = FakeTensorRT()
    for _ in range(2):
        require_plugins(trt, None, [ROI], libraries[0], "libroi.so")
    assert len(trt.loaded) == 1
    assert not Path(trt.loaded[0]).exists()  # the private copy was deleted


def test_a_library_is_loaded_for_each_tensorrt_with_its_own_registry(libraries: list[bytes]) -> None:
    both = FakeTensorRT(), FakeTensorRT()
    for trt in (*both, *both):
        require_plugins(trt, None, [ROI], libraries[0], "libroi.so")
    assert [len(trt.loaded) for trt in both] == [1, 1]


def test_a_second_library_with_the_same_plugin_is_refused(libraries: list[bytes]) -> None:
    trt = FakeTensorRT()
    require_plugins(trt, None, [ROI], libraries[0], "libroi.so")
    with pytest.raises(PluginError, match="another library has registered the plugin RoiPlugin, version 1"):
        require_plugins(trt, None, [ROI], libraries[1], "libother.so")
    assert len(trt.loaded) == 1


def test_a_library_is_refused_if_tensorrt_has_its_plugin_already(libraries: list[bytes]) -> None:
    trt = FakeTensorRT()
    trt.registered = {ROI}
    with pytest.raises(PluginError, match=r"would not use the one of libroi\.so"):
        require_plugins(trt, None, [ROI], libraries[0], "libroi.so")


def test_the_error_for_a_missing_plugin_lists_the_plugins_of_the_library(libraries: list[bytes]) -> None:
    missing = ("RoiPlugin", "2", "")
    with pytest.raises(PluginError, match=r"no plugin RoiPlugin, version 2: lib.so registers RoiPlugin, version 1\n"):
        require_plugins(FakeTensorRT(), None, [missing], libraries[0], "lib.so")
    with pytest.raises(PluginError, match=r"lib.so registers no plugin\n"):
        require_plugins(FakeTensorRT(), None, [missing], libraries[2], "lib.so")


def test_plugins_of_tensorrt_need_no_library() -> None:
    trt = FakeTensorRT()
    require_plugins(trt, None, [("ROIAlign_TRT", "1", "")], None, "")
    with pytest.raises(PluginError, match="TensorRT has ROIAlign_TRT, version 1"):
        require_plugins(trt, None, [ROI], None, "")


def test_a_library_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"libroi\.so cannot be loaded: .*file too short"):
        require_plugins(FakeTensorRT(), None, [ROI], b"\x7fELF", "libroi.so")


def test_tensorrt_rtx_has_its_own_plugin() -> None:
    trt = load("tensorrt-rtx")
    with capture_log(trt) as (logger, _):
        require_plugins(trt, logger, [("ROIAlign_TRT", "2", "")], None, "")
        with pytest.raises(PluginError, match=r"TensorRT has .*ROIAlign_TRT, version 2"):
            require_plugins(trt, logger, [ROI], None, "")
