"""The source form of a package's model is found by its names."""

from __future__ import annotations

from typing import Any

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
def test_by_the_operators_of_its_layers(operators: list[str], form: str | None) -> None:
    layers = {f"n{number}": ["somewhere", operator] for number, operator in enumerate(operators)}
    assert source_form({"ada": {"p0": layers, "p1": {}}}) == form


@pytest.mark.parametrize("names", [None, [], 1, {"ada": []}, {"ada": {"p0": {"n0": 1}}}, {"ada": {"p0": {"n0": []}}}])
def test_names_that_cannot_be_read_say_nothing(names: Any) -> None:
    assert source_form(names) is None
