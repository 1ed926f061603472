"""`torch_executed_ops`: the error about an unknown operator names the nearest one that PyTorch has."""

from __future__ import annotations

import pytest

from trtbuild.errors import SourceError
from trtbuild.stages.partition.labels import check_operators_exist, matches_any


@pytest.mark.parametrize("name", ["aten.cumsum", "aten.relu.default", "aten.add.Tensor", "torch.ops.aten.relu"])
def test_operators_of_pytorch_are_taken(name: str) -> None:
    check_operators_exist([name])


@pytest.mark.parametrize(
    ("name", "like"),
    [("aten.rleu", "aten.relu"), ("aten.add.Tensr", "aten.add.Tensor")],
)
def test_an_operator_that_pytorch_does_not_have_is_refused(name: str, like: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_operators_exist(["aten.relu", name])
    assert caught.value.code == "torch-executed-ops"
    assert name in caught.value.text and like in (caught.value.hint or "")


def test_custom_operators_are_not_checked() -> None:
    check_operators_exist(["acme.twist", "acme.twist.default"])


def test_an_operator_is_listed_with_or_without_its_overload() -> None:
    assert matches_any("aten.cumsum.default", ["aten.cumsum"])
    assert matches_any("aten.cumsum.default", ["torch.ops.aten.cumsum.default"])
    assert not matches_any("aten.cumsum.default", ["aten.cumprod"])
