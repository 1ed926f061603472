"""Descriptions of operators from outside PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.core.model.custom_operators import CustomOperator

NMS = CustomOperator(
    "torchvision.nms.default",
    "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision.extension",
    "torchvision",
    "0.28.0+cpu",
    has_cpu_kernel=False,
)
TWIST = CustomOperator("mylib.twist.default", "mylib::twist(Tensor x) -> Tensor")


@pytest.mark.parametrize("operator", [NMS, TWIST])
def test_an_operator_is_read_back_from_json_and_unknown_fields_are_ignored(operator: CustomOperator) -> None:
    assert CustomOperator.from_json(operator.to_json()) == operator
    assert CustomOperator.from_json({**operator.to_json(), "of a later version": 1}) == operator
    assert TWIST.to_json() == {"name": "mylib.twist.default", "schema": "mylib::twist(Tensor x) -> Tensor"}


def test_advice_names_the_module_and_the_command_that_installs_it() -> None:
    assert NMS.qualified_name == "torchvision::nms"
    assert NMS.import_advice == (
        "`import torchvision.extension` first, or load with `import_operators=True`; "
        "`pip install torchvision==0.28.0` installs it"
    )
    assert TWIST.import_advice == "import the module that registers mylib::twist"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "twist"}, "'twist' is not the name of an operator"),
        ({"name": 3}, "that is not text"),
        ({"schema": ""}, "that is not text"),
        ({"module": "os; print(1)"}, "is not the name of a module"),
        ({"module": ".hidden"}, "is not the name of a module"),
        ({"has_cpu_kernel": 1}, "is neither true nor false"),
    ],
)
def test_rejects_invalid_operators(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CustomOperator.from_json({**TWIST.to_json(), **change})
    with pytest.raises(ValueError, match="a name and a schema"):
        CustomOperator.from_json([])
