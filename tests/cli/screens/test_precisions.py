"""The result of ``inspect --precision`` as text."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.screens.precisions import precision_lines
from trtbuild.core.model.precisions import ComputedOperator
from trtbuild.driver.inspection.precision import InspectedPrecision


def computed(module: str, operator: str, type_: str = "float16", **fields: Any) -> ComputedOperator:
    values = {"calls": 1, "pattern": None, "rule": None, "reason": None, **fields}
    return ComputedOperator(module=module, operator=operator, type=type_, **values)


def test_equal_modules_share_a_row_and_operators_with_another_type_have_a_table() -> None:
    kept = {"rule": "operator", "reason": "softmax: a reason"}
    document = InspectedPrecision(
        model="net",
        default="float16",
        modules={"*.norm": "float32"},
        operators=[
            computed("layers.0.fc", "aten.linear.default"),
            computed("layers.0.norm", "aten.mul.Tensor", "float32", pattern="*.norm"),
            computed("layers.0", "aten.softmax.int", "float32", calls=2, **kept),
            computed("layers.1.fc", "aten.linear.default"),
            computed("layers.1.norm", "aten.mul.Tensor", "float32", pattern="*.norm"),
            computed("layers.1", "aten.softmax.int", "float32", **kept),
            computed("", "other.call.default"),
        ],
    )
    assert [click.unstyle(line) for line in precision_lines(document)] == [
        "net: float16, float32 for *.norm",
        "module               computes in       operators",
        "  layers.*.fc (2)    float16           linear",
        "  layers.*.norm (2)  float32 (*.norm)  mul",
        "  (the model)        float16           other.call.default",
        "not in the type of the module",
        "  layers.*  softmax  3 calls  float32  operator: softmax: a reason",
    ]


def test_a_model_without_rules_has_one_table() -> None:
    document = InspectedPrecision(model="net", default="float32", modules={}, operators=[computed("a", "b", "float32")])
    assert [click.unstyle(line) for line in precision_lines(document)] == [
        "net: float32",
        "module  computes in  operators",
        "  a     float32      b",
    ]
