"""Follows the recipe for a new source kind in docs/architecture.md: adds a class and a table row to a copy of trtbuild."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from tests.projects import copy_project
from trtbuild.stages.trace.examples import seed_everything

PACKAGE = Path(trtbuild.__file__).parent
RECIPE = PACKAGE.parent / "docs/architecture.md"

ROW = """\
    SourceKind(
        "layers",
        PROGRAM,
        "layers_source:LayersSource",
        "A JSON list of layers of `torch.nn`.",
        file="the list of layers",
        example="net.json",
    ),
"""

READER = '''\
"""``layers:`` sources: a JSON list of layers of torch.nn, each with its arguments."""

from __future__ import annotations

import json

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.sources.reading import SourceReader


class LayersSource(SourceReader):
    def read(self) -> torch.nn.Module:
        """The layers, one after the other. Raises SourceError."""
        layers = []
        for name, *arguments in json.loads(self.path.read_text()):
            if not hasattr(torch.nn, name):
                raise SourceError(f"torch.nn has no {name!r}", **self.job.place("source.layers", "source"))
            layers.append(getattr(torch.nn, name)(*arguments))
        return torch.nn.Sequential(*layers).eval()
'''


LAYERS = [["Linear", 8, 16], ["ReLU"], ["Linear", 16, 4]]


@pytest.fixture(scope="module")
def with_new_kind(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A project with a source of the new kind, and the command line of the changed trtbuild."""
    root = tmp_path_factory.mktemp("kinds")
    copy, project = root / "copy", root / "project"
    shutil.copytree(PACKAGE, copy / "trtbuild", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "trtbuild/stages/trace/sources/layers_source.py").write_text(READER)
    table = copy / "trtbuild/core/model/source_kinds.py"
    before, rows, after = table.read_text().partition("_ROWS = (\n")
    assert rows
    table.write_text(before + rows + ROW + after)
    source = ('python: "net:build"', "layers: net.json")
    dims = ("    inputs: {x: {}}\n", "    inputs: {x: {}}\n    dims: {rows: x.0}\n    reference: true\n")
    copy_project("mlp", project, source, dims)
    (project / "net.json").write_text(json.dumps(LAYERS))
    # `cold`: no worker is forked from the servers of the tests, because these have loaded the unchanged trtbuild
    return CommandLine(project, root / "cache", {"PYTHONPATH": str(copy)}, cold=True)


def test_a_model_of_the_new_kind_is_built(with_new_kind: CommandLine) -> None:
    document = with_new_kind("build")
    assert ran(document) == dict.fromkeys(("trace", "lower", "partition", "convert", "engine", "package"), 1)
    assert ran(with_new_kind("build")) == {}
    seed_everything()  # as the trace does before it reads a source
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(5, 8)
    with trtbuild.load(with_new_kind.project / "dist/net", device="cpu") as loaded, torch.no_grad():
        assert torch.allclose(loaded.module()(x), net(x), rtol=1e-5, atol=1e-5)


def test_the_source_file_is_a_dependency(with_new_kind: CommandLine) -> None:
    with_new_kind("build")
    (with_new_kind.project / "net.json").write_text(json.dumps([LAYERS[0], ["Tanh"], LAYERS[2]]))
    assert ran(with_new_kind("build"))["trace"] == 1


def test_an_error_of_the_new_reader_has_the_line_of_the_manifest(with_new_kind: CommandLine) -> None:
    (with_new_kind.project / "net.json").write_text(json.dumps([["Linea", 16, 8]]))
    error = with_new_kind("build", expect=1)["errors"][0]
    assert (error["file"], error["line"]) == ("trtbuild.yaml", 9)
    assert "torch.nn has no 'Linea'" in error["text"]


def test_the_schema_and_the_messages_contain_the_new_kind(with_new_kind: CommandLine) -> None:
    assert "layers" in with_new_kind("schema")["$defs"]["Source"]["properties"]
    (with_new_kind.project / "net.json").unlink()
    assert "the list of layers 'net.json' cannot be read" in with_new_kind.run("build").stderr


def test_the_unchanged_trtbuild_does_not_know_the_field(with_new_kind: CommandLine) -> None:
    unchanged = CommandLine(with_new_kind.project, with_new_kind.cache, cold=True)
    assert "unknown field 'layers'" in unchanged.run("build").stderr


def test_the_recipe_is_short_and_its_files_exist() -> None:
    _, _, rest = RECIPE.read_text().partition("### Adding a source kind\n")
    recipe = re.split(r"\n##", rest)[0]
    assert 0 < len(recipe.split()) <= 420
    files = [PACKAGE / name for name in re.findall(r"`((?:core|stages)/[\w/]+(?:\.py)?/?)`", recipe)]
    assert files and all(path.exists() for path in files)
