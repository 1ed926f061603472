"""Importing trtbuild loads no other module. torch has the operator ``trtbuild::engine`` after imports in any order.

All public names exist.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> str:
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def test_importing_trtbuild_loads_no_other_module() -> None:
    loaded = run("import sys; before = set(sys.modules); import trtbuild; print(*sorted(set(sys.modules) - before))")
    assert {name for name in loaded.split() if not name.startswith(("__editable__", "_editable"))} <= {
        "__future__",
        "trtbuild",
    }


@pytest.mark.parametrize(
    "order",
    [
        "import trtbuild, torch",
        "import torch, trtbuild",
        "import trtbuild, importlib.util; importlib.util.find_spec('torch'); import torch",
        "import trtbuild, transformers, torch",
    ],
)
def test_torch_has_the_operator_in_any_order_of_imports(order: str) -> None:
    output = run(
        f"{order}; import sys; print(torch.ops.trtbuild.engine.default); print(trtbuild._TorchImportHook in sys.meta_path)"
    )
    assert output.split() == ["trtbuild.engine.default", "False"]


def test_torch_has_the_operator_after_its_first_import_failed() -> None:
    output = run(
        "import ctypes, sys, trtbuild\n"
        "load = ctypes.CDLL\n"
        "def refuse(*arguments, **options):\n"
        "    ctypes.CDLL = load\n"
        "    raise MemoryError('no memory for the library')\n"
        "ctypes.CDLL = refuse\n"
        "try:\n"
        "    import torch\n"
        "except MemoryError as error:\n"
        "    print(error)\n"
        "import torch\n"
        "print(torch.ops.trtbuild.engine.default, trtbuild._TorchImportHook in sys.meta_path)"
    )
    assert output.splitlines() == ["no memory for the library", "trtbuild.engine.default False"]


def test_public_names_exist_and_an_unknown_name_is_an_error() -> None:
    import trtbuild

    for name in ("Input", "compile", "load", "save", "trace"):
        assert name in dir(trtbuild)
        assert callable(getattr(trtbuild, name))
    assert "dynamo" in dir(trtbuild)
    assert (trtbuild.dynamo.compile, trtbuild.dynamo.trace) == (trtbuild.compile, trtbuild.trace)
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        trtbuild.compil  # noqa: B018
