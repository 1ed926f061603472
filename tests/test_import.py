"""Importing trtbuild: it loads nothing, and torch knows the operator whichever of the two comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_loads_nothing_that_costs() -> None:
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
def test_torch_knows_the_operator_whichever_comes_first(order: str) -> None:
    said = run(
        f"{order}; import sys; print(torch.ops.trtbuild.engine.default); print(trtbuild._AfterTorch in sys.meta_path)"
    )
    assert said.split() == ["trtbuild.engine.default", "False"]


def test_public_names_are_there_and_others_are_not() -> None:
    import trtbuild

    for name in ("Input", "compile", "load", "save", "trace"):
        assert name in dir(trtbuild)
        assert callable(getattr(trtbuild, name))
    assert "dynamo" in dir(trtbuild)
    assert (trtbuild.dynamo.compile, trtbuild.dynamo.trace) == (trtbuild.compile, trtbuild.trace)
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        trtbuild.compil  # noqa: B018
