"""Which libraries Model Optimizer may import, and which environment it sees meanwhile."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

from trtbuild.stages.trace.calibration import calibrator

#: Modules of Python that no test imports. They stand for the libraries with a plugin.
LIBRARIES = ("tabnanny", "pyclbr")


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrator, "_PLUGIN_LIBRARIES", LIBRARIES)
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_libraries_that_user_code_does_not_use_cannot_be_imported_in_the_block() -> None:
    with calibrator._without_plugins():
        for name in LIBRARIES:
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)
            assert importlib.util.find_spec(name) is None
    assert not [name for name in LIBRARIES if name in sys.modules]
    assert importlib.import_module(LIBRARIES[0]).__name__ == LIBRARIES[0]


def test_all_libraries_can_be_imported_if_user_code_has_imported_one() -> None:
    importlib.import_module(LIBRARIES[0])
    with calibrator._without_plugins():
        assert importlib.import_module(LIBRARIES[1]).__name__ == LIBRARIES[1]


@pytest.mark.parametrize("value", [None, "0"])
def test_torch_compile_is_off_only_in_the_block(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    else:
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", value)
    with calibrator._torch_compile_off():
        assert os.environ["TORCHDYNAMO_DISABLE"] == "1"
    assert os.environ.get("TORCHDYNAMO_DISABLE") == value
