"""Models of the zoo at their small sizes: `python -m benchmarks.zoo` builds and verifies them and writes the table.

Only the models that need no other packages than those of the tests: PyTorch and transformers.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtbuild.core.model.spec import Model
from trtbuild.manifest import load

ROOT = Path(__file__).parents[3]
ZOO = ROOT / "benchmarks" / "zoo"
MODELS: dict[str, Model] = {model.name: model for model in load(ZOO).models}
#: A mask, a cache as inputs and outputs, float16, and a stock module.
NAMES = ("bert_base", "minilm", "llama_decode", "lstm", "transformer_encoder")


@dataclass(frozen=True)
class Written:
    """The page that one run has written, and what it has printed."""

    page: str
    printed: str

    def cells(self, model: str) -> list[str]:
        """The cells of the model's row."""
        (row,) = [line for line in self.page.splitlines() if line.startswith(f"| `{model}` |")]
        return [cell.strip() for cell in row.strip("|").split("|")]


def zoo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.zoo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("zoo")
    project = folder / "project"
    shutil.copytree(ZOO / "models", project / "models", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ZOO / "trtbuild.yaml", project / "trtbuild.yaml")
    page = folder / "zoo.md"
    page.write_text("<!-- zoo: small -->\n<!-- zoo: end of small -->\n")
    places = ("--project", str(project), "--cache", str(folder / "cache"), "--page", str(page))
    done = zoo("--only", ",".join(NAMES), "--size", "small", *places)
    assert done.returncode == 0, done.stdout + done.stderr
    return Written(page.read_text(), done.stdout)


@pytest.mark.parametrize("model", NAMES)
def test_a_small_model_is_one_engine_and_right(written: Written, model: str) -> None:
    _, precision, engines, in_torch, result, error, seconds = written.cells(model)
    assert (precision, engines, in_torch, result) == (MODELS[model].precision, "1", "0", "right")
    assert float(error) <= {"float32": 1e-5, "float16": 5e-3}[precision]
    assert float(seconds) > 0


def test_prints_the_rows_of_the_table(written: Written) -> None:
    rows = [line for line in written.page.splitlines() if line.startswith("| `")]
    assert sorted(written.printed.splitlines()) == sorted(rows)


def test_has_thirty_models_and_the_page_lists_no_others() -> None:
    assert len(MODELS) >= 30
    page = (ROOT / "docs" / "zoo.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) <= set(MODELS)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_source_of_a_model_is_a_function_of_the_zoo(model: Model) -> None:
    module, _, name = model.source.target.partition(":")
    tree = ast.parse((ZOO / f"{module.replace('.', '/')}.py").read_text())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert ast.get_docstring(function) and not function.args.args
    assert model.source.env == ("ZOO_SIZE",)


def test_rejects_an_unknown_model() -> None:
    done = zoo("--only", "bert_base,nothing")
    assert done.returncode == 2
    assert "no model nothing; the models are resnet50, " in done.stderr
