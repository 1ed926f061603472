"""`torch_executed_ops` accepts names with or without an overload. An error about an unknown name suggests a similar one."""

from __future__ import annotations

import pytest

from trtbuild.errors import SourceError
from trtbuild.stages.partition.labels import check_operators_exist, matches_any


@pytest.mark.parametrize("name", ["aten.cumsum", "aten.relu.default", "aten.add.Tensor", "torch.ops.aten.relu"])
def test_accepts_operators_of_pytorch(name: str) -> None:
    check_operators_exist([name])


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("aten.rleu", "aten.relu"), ("aten.add.Tensr", "aten.add.Tensor")],
)
def test_rejects_an_operator_that_pytorch_does_not_have(name: str, suggestion: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_operators_exist(["aten.relu", name])
    assert caught.value.code == "torch-executed-ops"
    assert name in caught.value.text and suggestion in (caught.value.hint or "")


def test_custom_operators_are_not_checked() -> None:
    check_operators_exist(["acme.twist", "acme.twist.default"])


def test_operators_match_with_or_without_their_overload() -> None:
    assert matches_any("aten.cumsum.default", ["aten.cumsum"])
    assert matches_any("aten.cumsum.default", ["torch.ops.aten.cumsum.default"])
    assert not matches_any("aten.cumsum.default", ["aten.cumprod"])
