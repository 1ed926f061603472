"""`leading_imports` finds the imports with which the code of a source begins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.core.model.spec import Source
from trtbuild.stages.trace.user_code.leading_imports import Code, Import, LeadingImports, leading_imports

Find = Callable[..., LeadingImports | None]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """A function that writes files of a project, and returns the leading imports of `target`."""

    def run(files: dict[str, str], target: str = "m:build", roots: tuple[str, ...] = (".",)) -> LeadingImports | None:
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return leading_imports(Source("python", target, roots=roots), str(tmp_path))

    return run


def _statements(found: LeadingImports | None) -> tuple[str, ...]:
    return () if found is None else found.statements


def test_finds_the_imports_up_to_the_last_library(find: Find, tmp_path: Path) -> None:
    text = '"""A model."""\nimport os\nimport torch\nfrom lib.part import A, B as C\nimport math\n\nclass Net: ...\n'
    found = find({"m": text})
    assert found == LeadingImports(
        ("import os", "import torch", "from lib.part import A, B"),
        (
            Code(str(tmp_path / "m.py"), hashlib.sha256(text.encode()).hexdigest()),
            # module, names, level of a relative import, position among the statements
            Import("os", (), 0, 0),
            Import("torch", (), 0, 1),
            Import("lib.part", ("A", "B"), 0, 2),
        ),
    )


def test_returns_none_if_no_library_but_torch_and_numpy_is_imported(find: Find) -> None:
    assert find({"m": "import os\nimport torch\nimport numpy as np\n"}) is None
    assert find({"m": "import lib\n"}, "absent:build") is None
    assert leading_imports(Source("onnx", "a.onnx"), "/") is None


@pytest.mark.parametrize(
    "statement",
    [
        "import os; os.environ['A'] = '1'",
        "print('x')",
        "x = compute()",
        "x = [y for y in z]",
        "from lib import *",
        "class A: pass",
        "@decorated\ndef f(): pass",
        "def f(x=compute()): pass",
        "def f(x: annotation.of.a.module): pass",
        "try:\n    import a\nexcept ImportError:\n    pass",
        "if x:\n    pass",
        "__path__ = []",
        "x: annotation = 1",
        "from .. import too_far",
        "not a statement",
    ],
)
def test_the_search_ends_at_a_statement_that_may_do_anything(find: Find, statement: str) -> None:
    assert find({"m": f"{statement}\nimport library\n"}) is None
    if statement != "not a statement":  # a file with a syntax error has no statements
        found = find({"m": f"import first\n{statement}\nimport library\n"})
        assert _statements(found) == ("import first",)


@pytest.mark.parametrize(
    "statement",
    [
        "'text'",
        "SIZE = -1",
        "__all__ = ['build']",
        "NAMES = {'a': (1, 2)}",
        "def f(a, b=1, *, c=None): return os.environ",
        "from __future__ import annotations\ndef f(x: a.b) -> c.d: ...\nsize: int = 1",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import not_imported",
        "pass",
    ],
)
def test_statements_that_only_bind_names_do_not_end_the_search(find: Find, statement: str) -> None:
    found = _statements(find({"m": f"{statement}\nimport library\n"}))
    assert found[-1:] == ("import library",)
    assert "import not_imported" not in found


def test_modules_of_the_project_are_followed_in_the_order_of_python(find: Find, tmp_path: Path) -> None:
    files = {
        "pack/__init__": "import one\nfrom pack import helper\n",
        "pack/helper": "import two\nfrom .model import name\nimport three\n",
        "pack/model": "from . import helper\nfrom pack.other import x\nimport four\nx = call()\nimport five\n",
        "pack/other": "import three\nimport six\n",
    }
    found = find(files, "pack.model:build")
    # helper imports pack.model. Then pack.model imports helper, whose import has already begun, and then pack.other
    assert found is not None
    assert found.statements == ("import one", "import two", "import three", "import six", "import four")
    stems = [Path(step.path).stem for step in found.steps if isinstance(step, Code)]
    assert stems == ["__init__", "helper", "model", "other"]


def test_a_name_that_a_package_binds_is_not_imported_as_a_submodule(find: Find) -> None:
    files = {"pack/__init__": "part = 1\n", "pack/part": "import one\n", "pack/other": "import one\n"}
    assert _statements(find({**files, "m": "from pack import part\nimport two\n"})) == ("import two",)
    assert _statements(find({**files, "m": "from pack import other\nimport two\n"})) == ("import one", "import two")


def test_a_package_without_init_may_have_folders_in_several_roots(find: Find) -> None:
    found = find({"b/pack/m": "import one\n", "a/pack/n": "", "a/other": "import no\n"}, "pack.m:build", ("a", "b"))
    assert _statements(found) == ("import one",)


def test_the_search_ends_at_an_extension_module_of_the_project(find: Find, tmp_path: Path) -> None:
    (tmp_path / "fast.abi3.so").write_bytes(b"")
    assert find({"m": "import fast\nimport library\n", "fast": ""}) is None
