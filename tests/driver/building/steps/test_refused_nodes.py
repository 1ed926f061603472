"""An error about ONNX nodes that TensorRT refused names their operators and modules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.conftest import FakeWorld, a_model
from trtbuild.driver.building.steps.refused_nodes import name_operators
from trtbuild.errors import StoreUnavailable, ToolchainError


def _refused(*nodes: str) -> ToolchainError:
    error = ToolchainError("the ONNX parser of tensorrt refuses n0 (Erf: no)")
    error.nodes = nodes
    return error


def _with_names(world: Any, error: ToolchainError, step: str = "net/engine/layers.1@ada") -> ToolchainError:
    plan = world.plan(a_model())
    name_operators(error, plan, plan.steps[step], world)
    return error


def test_the_error_names_module_operator_and_the_setting_that_keeps_it_in_pytorch() -> None:
    world = FakeWorld()
    world.build(a_model())
    error = _with_names(world, _refused("n0", "n9"))
    assert error.text.splitlines()[1:] == ["    n0 is linear in layers.1"]
    assert error.hint == "keep the refused operators in PyTorch: partition: {torch_executed_ops: [linear]}"


def test_unknown_names_are_left_out() -> None:
    world = FakeWorld()
    world.build(a_model())
    for error in (_with_names(world, _refused("n9")), _with_names(world, _refused())):
        assert error.text == _refused().text and error.hint is None
    record = world.plan(a_model()).steps["net/lower"].record
    assert record is not None
    world.evict(record.outputs["modules"])
    assert _with_names(world, _refused("n0")).text == _refused().text


@pytest.mark.parametrize("fault", [StoreUnavailable("the cache cannot be used"), OSError("no file descriptors")])
def test_an_error_of_the_store_does_not_hide_the_error_of_tensorrt(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, faults = FakeWorld(), [fault]
    world.build(a_model())
    plan, error = world.plan(a_model()), _refused("n0")

    def blob(sha256: str) -> bytes:
        raise faults.pop()

    monkeypatch.setattr(world, "blob", blob)
    name_operators(error, plan, plan.steps["net/engine/layers.1@ada"], world)  # type: ignore[arg-type]
    assert error.text == _refused().text
    assert faults == [], "the store was read"
