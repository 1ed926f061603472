"""The operators in ``names.json`` show whether a model came as a PyTorch program, as ONNX or as a TensorRT network."""

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
def test_the_form_follows_from_the_operators_of_the_layers(operators: list[str], form: str | None) -> None:
    layers = {f"n{number}": ["somewhere", operator] for number, operator in enumerate(operators)}
    assert source_form({"ada": {"p0": layers, "p1": {}}}) == form


@pytest.mark.parametrize("names", [None, [], 1, {"ada": []}, {"ada": {"p0": {"n0": 1}}}, {"ada": {"p0": {"n0": []}}}])
def test_the_form_is_unknown_if_names_cannot_be_read(names: Any) -> None:
    assert source_form(names) is None
