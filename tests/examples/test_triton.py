"""Triton repositories of the examples: the configurations are valid, and the ensembles return the models' results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conftest import BuiltExamples
from tests.driver.outputs.triton.repositories import configurations, read_unchecked
from tests.examples.conftest import Example, example_names, relative_difference
from tests.examples.test_numbers import TOLERANCE
from trtbuild.driver.outputs.triton.native_support import unsupported_reason

Find = Callable[[str], Example]

_TYPES = {
    torch.float32: "TYPE_FP32",
    torch.float16: "TYPE_FP16",
    torch.bfloat16: "TYPE_BF16",
    torch.int64: "TYPE_INT64",
    torch.int32: "TYPE_INT32",
    torch.bool: "TYPE_BOOL",
    torch.uint8: "TYPE_UINT8",
}


#: Example → the reason why the example needs Triton's Python backend with every toolchain.
NOT_NATIVE = {
    "three_parts": "partition p1 runs in PyTorch",
    "chosen": "partition p1 runs in PyTorch",
    "digits": "partition model has an output whose size depends on the values of its inputs",
}


def as_tensorrt_package(index: Any) -> Any:
    """The index as if TensorRT 10 had built the package, for its first target only."""
    changed = copy.deepcopy(index)
    name, target = next(iter(changed["targets"].items()))
    changed["targets"] = {name: {**target, "toolchain": "tensorrt", "version": "10.8.0", "engines": {}}}
    return changed


@pytest.mark.parametrize("name", example_names(only_computable=True))
def test_every_example_can_be_served(name: str, built_examples: BuiltExamples) -> None:
    index = copy.deepcopy(built_examples.index(name))
    for target in index["targets"].values():
        target["engines"] = {}
    (config,) = configurations(index).values()
    assert (config.name, config.backend) == (name, "python")


@pytest.mark.parametrize("name", example_names(only_computable=True))
def test_an_ensemble_computes_the_model(name: str, find_example: Find, built_examples: BuiltExamples) -> None:
    """The test runs the steps of the ensemble as Triton does, but PyTorch computes the engines' results.

    All tensors must have the types and shapes that the configurations declare.
    """
    index = as_tensorrt_package(built_examples.index(name))
    assert unsupported_reason(read_unchecked(index)) == NOT_NATIVE.get(name)
    if name in NOT_NATIVE:
        return
    configs, example = configurations(index), find_example(name)
    parts = {part.name: part for part in example.partitions.partitions}
    ensemble = configs[name]
    for _, sizes in example.points:
        inputs = example.inputs(sizes)
        values = dict(inputs)
        for entry in ensemble.input:
            _check_tensor(entry, values[entry.name], batched=ensemble.max_batch_size > 0)
        for step in ensemble.ensemble_scheduling.step:
            config, part = configs[step.model_name], parts[step.model_name.removeprefix(f"{name}.")]
            arguments = [values[step.input_map[f"i{k}"]] for k in range(len(part.inputs))]
            results = example.in_torch(part, arguments)
            for entry, value in zip((*config.input, *config.output), (*arguments, *results), strict=True):
                _check_tensor(entry, value, batched=False)
            values.update({step.output_map[f"o{k}"]: value for k, value in enumerate(results)})
        for entry, expected in zip(ensemble.output, example.run_eager(inputs), strict=True):
            _check_tensor(entry, values[entry.name], batched=ensemble.max_batch_size > 0)
            assert relative_difference(values[entry.name], expected) <= TOLERANCE[example.model.precision]


def _check_tensor(entry: Any, value: torch.Tensor, *, batched: bool) -> None:
    """Fail if a tensor has another type or shape than its configuration. In Triton, a scalar has the shape [1]."""
    assert (
        entry.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[entry.data_type].name
        == (_TYPES[value.dtype])
    )
    shape = list(value.shape)[1:] if batched else list(value.shape)
    dims, shape = list(entry.dims), shape or [1]
    assert len(dims) == len(shape)
    assert all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True)), (entry.name, dims, shape)
