"""A package whose engines Triton runs itself: one Triton model for each partition, and an ensemble that connects them.

The ensemble may be batched (`tensors.max_batch_size`), but the models of the partitions never are: their dims include the
batch axis. Triton allows that ("batchable ensemble can include non-batchable models", ensemble_utils.cc). For a model with
a `max_batch_size`, the TensorRT backend would turn on dynamic batching by default (model_state.cc,
`AutoCompleteConfigHelper`). Dynamic batching is wrong if the rows of a batch depend on one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.partitions import Partition
from trtbuild.driver.outputs.triton.native_support import served_sms
from trtbuild.driver.outputs.triton.tensors import max_batch_size, tensor_fields
from trtbuild.driver.outputs.triton.text_format import EnumValue, Message, Value

_Fields = list[tuple[str, Value]]


def engine_configurations(index: PackageIndex) -> dict[str, Message]:
    """Return Triton model → configuration, for each partition."""
    partitions = _partitions(index)
    return {engine_model_name(index, partition.name): _engine_fields(index, partition) for partition in partitions}


def engine_model_name(index: PackageIndex, partition: str) -> str:
    """Return the name of the Triton model for the engines of a partition."""
    return f"{index.model}.{partition}"


def plan_files(index: PackageIndex) -> Iterator[tuple[str, str]]:
    """Yield (path in the repository, path in the package) of each plan."""
    for target, entry in index.targets.items():
        for partition, path in entry.engines.items():
            yield f"{engine_model_name(index, partition)}/1/{target}.plan", path


def _partitions(index: PackageIndex) -> Sequence[Partition]:
    """Return the partitions of the first target. All targets have equal partitions."""
    return next(iter(index.targets.values())).partitions.partitions


def _engine_fields(index: PackageIndex, partition: Partition) -> Message:
    fields: _Fields = [
        ("name", engine_model_name(index, partition.name)),
        ("platform", "tensorrt_plan"),
        ("max_batch_size", 0),
    ]
    for number, (_, type_) in enumerate(partition.inputs):
        fields.append(("input", tuple(tensor_fields(f"i{number}", type_, reshape=True))))
    for number, type_ in enumerate(partition.outputs):
        fields.append(("output", tuple(tensor_fields(f"o{number}", type_, reshape=True))))
    fields += _plan_fields(index)
    profiles = [str(number) for number in range(len(index.profiles))]
    fields.append(("instance_group", (("count", 1), ("kind", EnumValue("KIND_GPU")), ("profile", profiles))))
    return fields


def _plan_fields(index: PackageIndex) -> _Fields:
    """Return the fields that map compute capabilities to plans, and the field with the plan of all other GPUs."""
    fields: _Fields = []
    for name, target in index.targets.items():
        for sm in served_sms(target):
            if isinstance(sm, int):
                capability = f"{sm // 10}.{sm % 10}"
                fields.append(("cc_model_filenames", (("key", capability), ("value", f"{name}.plan"))))
            else:
                fields.insert(0, ("default_model_filename", f"{name}.plan"))
    return fields


def ensemble_configuration(index: PackageIndex) -> Message:
    """Return the configuration of the model: an ensemble with the engines as steps."""
    batch_size = max_batch_size(index)
    fields: _Fields = [("name", index.model), ("platform", "ensemble"), ("max_batch_size", batch_size)]
    for kind, tensors in (("input", index.inputs), ("output", index.outputs)):
        fields += [(kind, tuple(tensor_fields(tensor.name, tensor, batched=batch_size > 0))) for tensor in tensors]
    names = _tensor_names(index)
    steps = tuple(("step", _step_fields(index, partition, names)) for partition in _partitions(index))
    fields.append(("ensemble_scheduling", steps))
    return fields


def _step_fields(index: PackageIndex, partition: Partition, names: Mapping[str, str]) -> tuple[tuple[str, Value], ...]:
    inputs = {f"i{number}": names[source] for number, (source, _) in enumerate(partition.inputs)}
    outputs = {f"o{number}": names[f"{partition.name}:{number}"] for number in range(len(partition.outputs))}
    return (
        ("model_name", engine_model_name(index, partition.name)),
        ("model_version", -1),
        *(("input_map", (("key", key), ("value", value))) for key, value in inputs.items()),
        *(("output_map", (("key", key), ("value", value))) for key, value in outputs.items()),
    )


def _tensor_names(index: PackageIndex) -> dict[str, str]:
    """Return source (``input:0``, ``p0:1``) → name of the tensor in the ensemble.

    Inputs and outputs have their names in the package. A tensor between two engines is called ``p0.o1``.
    """
    names = {f"input:{number}": tensor.name for number, tensor in enumerate(index.inputs)}
    partitioning = next(iter(index.targets.values())).partitions
    names.update({source: tensor.name for source, tensor in zip(partitioning.outputs, index.outputs, strict=True)})
    used_names = set(names.values())
    for partition in partitioning.partitions:
        for number in range(len(partition.outputs)):
            name = f"{partition.name}.o{number}"
            while name in used_names:
                name += "_"
            used_names.add(names.setdefault(f"{partition.name}:{number}", name))
    return names
