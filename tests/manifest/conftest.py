"""A project in a temporary directory. In the texts of its manifests, marks show the places that errors must name."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from trtbuild.core.model.spec import Model, Project
from trtbuild.errors import ManifestErrors, Problem
from trtbuild.manifest import load

#: The mark of a place. The written files do not contain it.
MARK = "«"

#: The manifest that most tests change or extend.
BASE = """\
version: 1
targets:
  ada: {sm: 89}
profiles:
  batch:
    x: {min: [1, 8], opt: [4, 8], max: [32, 8]}
models:
  net:
    source: {python: "net:build"}
    inputs: {x: {dtype: float32}}
    profiles: [batch]
    targets: [ada]
"""


class Files:
    """Writes and loads a project. `marks` are the marked places (file, line, column). Lines and columns start at 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.marks: set[tuple[str, int, int]] = set()

    def write(self, name: str, text: str = "") -> Files:
        """Write a dedented text without its marks, and add their places to `marks`."""
        text = textwrap.dedent(text)
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        while (position := text.find(MARK)) >= 0:
            text = text[:position] + text[position + 1 :]
            before = text[:position]
            self.marks.add((name, before.count("\n") + 1, position - before.rfind("\n")))
        path.write_text(text, encoding="utf-8")
        return self

    def manifest(self, text: str) -> Files:
        return self.write("trtbuild.yaml", text)

    def load(self, *files: str) -> Project:
        return load(self.root, files or None)

    def model(self, text: str | None = None, name: str | None = None) -> Model:
        """Return the model `name` of a manifest, or its first model."""
        if text is not None:
            self.manifest(text)
        models = {model.name: model for model in self.load().models}
        return models[name] if name else next(iter(models.values()))

    def base_model(self, more: str = "") -> Model:
        """Return the model of `BASE` with the fields `more`."""
        return self.model(BASE + textwrap.indent(textwrap.dedent(more), "    "))

    def assert_refused(self, text: str | None = None, *words: str) -> tuple[Problem, ...]:
        """Check that the project is rejected, with problems exactly at the marks, and with all `words` in the message.

        `text` is the manifest. If it is None, all files were written before. Returns the problems."""
        if text is not None:
            self.manifest(text)
        with pytest.raises(ManifestErrors) as caught:
            self.load()
        problems = caught.value.problems
        assert {(p.file, p.line, p.column) for p in problems} == self.marks, str(caught.value)
        report = str(caught.value)
        for word in words:
            assert word in report, report
        return problems

    def assert_base_refused(self, more: str, *words: str) -> tuple[Problem, ...]:
        """Call `assert_refused` for `BASE` with the fields `more` in its model."""
        return self.assert_refused(BASE + textwrap.indent(textwrap.dedent(more), "    "), *words)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)
