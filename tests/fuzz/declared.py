"""Compares declared types and sizes with real ones.

The partition document is compared with the networks of engines, and with PyTorch's values. The sizes of these values are
compared with the profiles of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tests.fuzz.pipeline import Built
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.shapes import profile_sizes
from trtbuild.core.model.verification import Point
from trtbuild.core.partition.partitions import Partition, TensorType
from trtbuild.core.planning.expand import symbol_values
from trtbuild.core.values.expressions import Expression, depends_on_data, evaluate, interval

#: The names of tensorrt.DataType in the compiler's document about an engine → the names in torch.
ENGINE_DTYPES = {
    "float": "float32",
    "half": "float16",
    "bf16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
    "uint8": "uint8",
}


def network_differences(part: Partition, built: Built) -> Iterator[str]:
    """The differences between the network of an engine and its partition."""
    (profile,) = built.model.profiles
    # in units of `multiple_of`, like the symbols of the partition document
    low, high = (symbol_values(built.shapes, profile_sizes(built.shapes, profile, which)) for which in ("min", "max"))
    bounds = list(zip(low, high, strict=True))
    network = built.layers[part.name]
    types_of_part = {"inputs": [type_ for _, type_ in part.inputs], "outputs": list(part.outputs)}
    for kind, types in types_of_part.items():
        declared_types = {f"{kind[0]}{k}": type_ for k, type_ in enumerate(types)}
        tensors = {entry["name"]: entry for entry in network[kind]}
        if sorted(tensors) != sorted(declared_types):
            yield f"{part.name}: the network's {kind} are {sorted(tensors)}, the partition has {len(types)}"
        for name in declared_types.keys() & tensors.keys():
            type_, entry = declared_types[name], tensors[name]
            dtype = ENGINE_DTYPES.get(entry["dtype"], entry["dtype"])
            sizes = entry["shape"]
            if dtype != type_.dtype or sizes is None or len(sizes) != len(type_.shape):
                yield f"{part.name}: the network's {name} is {dtype}{sizes}, declared {_type_text(type_)}"
                continue
            for size, axis in zip(sizes, type_.shape, strict=True):
                if size != -1 and interval(axis, bounds) != (size, size):
                    yield f"{part.name}: the network's {name} is {dtype}{sizes}, declared {_type_text(type_)}"
                    break


def result_differences(
    part: Partition, values: Sequence[torch.Tensor], sizes: Sequence[int], where: str
) -> Iterator[str]:
    """The differences between a partition's outputs and their declaration in the document."""
    if len(values) != len(part.outputs):
        yield f"{part.name} gives {len(values)} values at {where}, declared {len(part.outputs)}"
    for k, (type_, value) in enumerate(zip(part.outputs, values, strict=False)):
        if not _has_type(type_, value, sizes):
            computed = f"{_dtype_name(value.dtype)}{list(value.shape)}"
            yield f"{part.name}:{k} is {computed} at {where}, declared {_type_text(type_)}"


def profile_differences(
    part: Partition, job: EngineJob, values: Sequence[torch.Tensor], point: Point, where: str
) -> Iterator[str]:
    """The inputs whose sizes are outside the profile of the engine."""
    for k, (value, shape) in enumerate(zip(values, job.profiles[point.profile], strict=True)):
        low, high = shape.min, shape.max
        fits = len(low) == value.dim() and all(
            smallest <= size <= largest for smallest, size, largest in zip(low, value.shape, high, strict=True)
        )
        if not fits:
            yield f"{part.name} takes {list(value.shape)} at {where} as i{k}, its profile is {list(low)} to {list(high)}"


def _has_type(type_: TensorType, value: torch.Tensor, sizes: Sequence[int]) -> bool:
    return (
        type_.dtype == _dtype_name(value.dtype)
        and len(type_.shape) == value.dim()
        and all(_fits(axis, size, sizes) for axis, size in zip(type_.shape, value.shape, strict=True))
    )


def _fits(axis: Expression, size: int, sizes: Sequence[int]) -> bool:
    """Whether `size` agrees with the declared axis. `sizes` are the values of the symbols."""
    return depends_on_data(axis) or evaluate(axis, sizes) == size


def _type_text(type_: TensorType) -> str:
    return f"{type_.dtype}{list(type_.shape)}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
