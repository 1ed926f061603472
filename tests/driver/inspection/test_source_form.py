"""What a package's model came as is told by its names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtbuild.driver.inspection.source_form import source_form


@pytest.mark.parametrize(
    ("operators", "form"),
    [
        (["aten.linear.default", "aten.relu.default"], "program"),
        (["getitem", "aten.add.Tensor"], "program"),
        (["Conv", "Relu", "custom_op"], "onnx"),
        (["convolution", "matrix_multiply"], "network"),
        ([], None),
        (["custom-op"], None),
    ],
)
def test_by_the_operators_of_its_layers(tmp_path: Path, operators: list[str], form: str | None) -> None:
    layers = {f"n{number}": ["somewhere", operator] for number, operator in enumerate(operators)}
    (tmp_path / "names.json").write_text(json.dumps({"ada": {"p0": layers, "p1": {}}}))
    assert source_form(tmp_path) == form


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", '{"ada": []}', '{"ada": {"p0": {"n0": 1}}}', '{"ada": {"p0": {"n0": []}}}']
)
def test_names_that_cannot_be_read_say_nothing(tmp_path: Path, text: str) -> None:
    assert source_form(tmp_path) is None
    (tmp_path / "names.json").write_text(text)
    assert source_form(tmp_path) is None
