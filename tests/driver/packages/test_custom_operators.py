"""Packages with custom operators, which come from outside PyTorch, are loaded or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.driver.packages.custom_operators import import_from, require_operators
from trtbuild.errors import OperatorMissing

SCHEMA = "(Tensor x) -> Tensor"


def operator(name: str, module: str | None, schema: str = SCHEMA) -> CustomOperator:
    return CustomOperator(f"loading.{name}.default", f"loading::{name}{schema}", module, "some-operators", "1.2+cu130")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three modules: the first defines an operator, the second defines nothing, and the import of the third fails."""
    define = "import torch\nlibrary = torch.library.Library('loading', 'FRAGMENT')\n"
    (tmp_path / "loading_defines.py").write_text(f"{define}library.define('defined{SCHEMA}')\n")
    (tmp_path / "loading_nothing.py").write_text("")
    (tmp_path / "loading_fails.py").write_text("raise ValueError('no such GPU\\nsecond line')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_missing_operator_names_its_module_and_the_command_that_installs_it(modules: None) -> None:
    with pytest.raises(OperatorMissing) as caught:
        require_operators([operator("defined", "loading_defines")], "net", import_modules=False)
    assert caught.value.text == (
        "the package of 'net' calls the operator loading::defined, which is not registered: it comes from the module "
        "loading_defines"
    )
    assert caught.value.hint == (
        "`import loading_defines` first, or load with `import_operators=True`; "
        "`pip install some-operators==1.2` installs it"
    )
    assert "loading_defines" not in sys.modules
    with pytest.raises(OperatorMissing, match=r"which is not registered\n.*import the module that registers"):
        require_operators([operator("defined", None)], "net", import_modules=True)


def test_modules_are_imported_on_request(modules: None) -> None:
    require_operators([operator("defined", "loading_defines")], "net", import_modules=True)
    assert "loading_defines" in sys.modules
    require_operators([operator("defined", "another_module")], "net", import_modules=True)  # `defined` exists already
    with pytest.raises(
        OperatorMissing, match=r"has the schema .*Tensor x\) -> Tensor here, but .*Tensor y\) -> Tensor"
    ):
        require_operators([operator("defined", None, "(Tensor y) -> Tensor")], "net", import_modules=False)
    del sys.modules["loading_defines"]  # this deletes the module's `library`, and so the operator


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("loading_nothing", "is not registered after `import loading_nothing`"),
        ("loading_fails", "`import loading_fails` fails: ValueError: no such GPU"),
        ("loading_absent", "`import loading_absent` fails: ModuleNotFoundError: No module named 'loading_absent'"),
    ],
)
def test_a_module_that_does_not_register_the_operator_is_an_error(modules: None, module: str, text: str) -> None:
    with pytest.raises(OperatorMissing) as caught:
        require_operators([operator("absent", module)], "net", import_modules=True)
    assert caught.value.text.endswith(text)
    assert "`pip install some-operators==1.2`" in str(caught.value.hint)


def test_a_package_without_custom_operators_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    require_operators([], "net", import_modules=True)


def test_the_folder_of_a_project_is_added_once_at_the_end_of_sys_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    import_from(tmp_path)
    import_from(tmp_path)
    assert sys.path.index(str(tmp_path.resolve())) == len(sys.path) - 1
