"""Models of the zoo: three small ones are built and verified, and the manifest agrees with the sources and the page."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.zoo.__main__ import main
from benchmarks.zoo.measuring import Row, Zoo
from tests.warm.servers import servers
from trtbuild.core.model.spec import Model
from trtbuild.manifest import load

ROOT = Path(__file__).parents[3]
ZOO = ROOT / "benchmarks" / "zoo"
MODELS: dict[str, Model] = {model.name: model for model in load(ZOO).models}
#: The models that are built. They need only PyTorch and transformers: a float16 model with a mask, a model that reads and
#: returns its cache of keys and values, and a PyTorch module whose mask is a keyword argument.
NAMES = ("minilm", "llama_decode", "transformer_encoder")
BROKEN_MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {shape: [2, 3]}}}
models:
  broken: {source: {python: "net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Name → row of the models in `NAMES`, after one build and one verification."""
    folder = tmp_path_factory.mktemp("zoo")
    shutil.copytree(ZOO / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ZOO / "trtbuild.yaml", folder / "trtbuild.yaml")
    # trtbuild, forked from a process that has loaded torch
    program = (sys.executable, *servers.forked_command("trtbuild.cli.main", os.environ))
    built, verified = Zoo(folder, folder / "cache", "small", program, jobs=2).measure(NAMES)
    assert [row.status for row in built] == [None] * len(NAMES)
    return {row.model: row for row in verified}


@pytest.mark.parametrize("model", NAMES)
def test_a_small_model_is_one_engine_and_right(rows: dict[str, Row], model: str) -> None:
    row = rows[model]
    assert (row.engines, row.torch_partitions, row.status, row.problem) == (1, 0, "right", "")
    assert row.precision == MODELS[model].precision
    assert row.error is not None and row.error <= {"float32": 1e-5, "float16": 5e-3}[row.precision]
    assert row.seconds is not None and row.seconds > 0


def test_a_model_that_cannot_be_built_has_the_reason(tmp_path: Path) -> None:
    program = (sys.executable, *servers.forked_command("trtbuild.cli.main", os.environ))
    (tmp_path / "net.py").write_text("def build():\n    raise RuntimeError('no such width')\n")
    (tmp_path / "trtbuild.yaml").write_text(BROKEN_MANIFEST)
    *_, (row,) = Zoo(tmp_path, tmp_path / "cache", "small", program).measure([])
    assert row == Row(model="broken", precision="float32", problem="net:build() fails: RuntimeError: no such width")


def test_has_at_least_thirty_models_and_the_page_lists_no_others() -> None:
    assert len(MODELS) >= 30
    page = (ROOT / "docs" / "zoo.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert listed and listed <= set(MODELS)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_source_of_a_model_is_a_function_of_the_zoo(model: Model) -> None:
    module, _, name = model.source.target.partition(":")
    tree = ast.parse((ZOO / f"{module.replace('.', '/')}.py").read_text())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert ast.get_docstring(function) and not function.args.args
    assert model.source.env == ("ZOO_SIZE",)


def test_rejects_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "bert_base,nothing"]) == 2
    assert "no model nothing; the models are resnet50, " in capsys.readouterr().err
