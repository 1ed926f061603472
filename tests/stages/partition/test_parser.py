"""Partitioning with the real exporter and parser: they accept sizes that a partition computes, and the sizes are right."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import onnxruntime
import pytest
import torch

from tests.stages.partition import test_sizes as sizes
from tests.store.memory_store import MemoryStore
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.driver.workers.validator import Validator
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.convert.weights import with_inline_weights

pytest.importorskip("tensorrt_rtx")

OPSET = 20
CASES = [sizes.rows(*case) for case in sizes.CASES]


@pytest.fixture(scope="module")
def validator() -> Validator:
    job = PartitionJob("", "program", PartitionSettings(), "tensorrt-rtx", version("tensorrt-rtx"), OPSET, {})
    return Validator(MemoryStore(), job)


def assert_onnx_equals_programs(partitioned: Any) -> None:
    """Fail unless the ONNX model of each TensorRT partition returns the results of the program, at all sizes."""
    for part in partitioned.partitions:
        if part.kind != "tensorrt":
            continue
        weights = {f"w{number}": partitioned.model.weights[slot].numpy() for number, slot in enumerate(part.weights)}
        session = onnxruntime.InferenceSession(
            with_inline_weights(convert(partitioned.result.programs[part.graph], OPSET).model, weights),
            providers=["CPUExecutionProvider"],
        )
        for case in CASES:
            values = partitioned.values(case)
            feeds = {f"i{k}": values[source].contiguous().numpy() for k, (source, _) in enumerate(part.inputs)}
            for number, result in enumerate(session.run([f"o{k}" for k in range(len(part.outputs))], feeds)):
                torch.testing.assert_close(torch.from_numpy(result), values[f"{part.name}:{number}"])


@pytest.mark.parametrize("function", [sizes.reshapes, sizes.number_as_float, sizes.padded], ids=lambda f: f.__name__)
def test_partitions_recompute_the_sizes_that_they_need(
    function: Callable[..., Any], validator: Validator, lowered: Any
) -> None:
    model = lowered(function, *sizes.rows(3, 6), dims=sizes.DIMS)
    whole = model.partition(validator)
    assert whole.kinds == ["tensorrt"]
    parts = model.partition(validator, torch_executed_ops=("aten.cumsum",)).assert_same_results_as_unpartitioned(*CASES)
    assert parts.kinds.count("tensorrt") >= 2
    for partitioned in (whole, parts):
        assert_onnx_equals_programs(partitioned)


def test_an_engine_can_get_a_tensor_for_its_size_alone(validator: Validator, lowered: Any) -> None:
    partitioned = lowered(sizes.WithToken(), *sizes.rows(3, 6), dims=sizes.DIMS).partition(
        validator, granularity=("token",)
    )
    assert (partitioned.names, partitioned.kinds) == (["token", "p1"], ["tensorrt", "tensorrt"])
    assert_onnx_equals_programs(partitioned)


def test_operators_that_the_exporter_or_parser_refuses_are_listed(validator: Validator, lowered: Any) -> None:
    """TensorRT has no sort and no determinant. The operators between and around them stay in engines."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        y = torch.sort(x.relu(), dim=1, stable=True).values.tanh()
        return y * torch.linalg.det(y.transpose(1, 2) @ y + torch.eye(4))[:, None, None]

    partitioned = (
        lowered(refused, *sizes.rows(3, 6), dims=sizes.DIMS)
        .partition(validator)
        .assert_valid_document()
        .assert_same_results_as_unpartitioned(*CASES)
    )
    assert set(partitioned.kinds) == {"tensorrt", "torch"}
    reasons = {name: reason for part in partitioned.partitions for name, reason in part.reasons.items()}
    assert any("sort" in name for name in reasons) and any("det" in name for name in reasons)
    assert not any("relu" in name or "tanh" in name for name in reasons)
    assert_onnx_equals_programs(partitioned)
