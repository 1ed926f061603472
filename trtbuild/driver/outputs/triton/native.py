"""A package whose engines Triton runs itself: one model per engine, and an ensemble with the manifest's names.

The ensemble may be batched (`tensors.max_batch_size`), but the engines' models never are. Their dims include the batch, as
-1. Triton allows that ("batchable ensemble can include non-batchable models", ensemble_utils.cc). For a model with a
`max_batch_size`, the TensorRT backend would turn on dynamic batching by default (model_state.cc,
`AutoCompleteConfigHelper`). Dynamic batching is wrong if rows depend on one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.partitions import Partition
from trtbuild.driver.outputs.triton.native_support import served_sms
from trtbuild.driver.outputs.triton.tensors import described, max_batch_size
from trtbuild.driver.outputs.triton.text_format import Message, Value, Word

_Fields = list[tuple[str, Value]]


def engine_models(index: PackageIndex) -> dict[str, Message]:
    """Return the configurations of the engines' models, by name."""
    parts = _partitions(index)
    return {model_of(index, part.name): _engine(index, part) for part in parts}


def model_of(index: PackageIndex, partition: str) -> str:
    """Return the name of an engine's model."""
    return f"{index.model}.{partition}"


def plan_files(index: PackageIndex) -> Iterator[tuple[str, str]]:
    """Yield (path in the repository, path in the package) of each plan."""
    for target, entry in index.targets.items():
        for partition, path in entry.engines.items():
            yield f"{model_of(index, partition)}/1/{target}.plan", path


def _partitions(index: PackageIndex) -> Sequence[Partition]:
    """Return the partitions, which are the same for all targets."""
    return next(iter(index.targets.values())).partitions.partitions


def _engine(index: PackageIndex, part: Partition) -> Message:
    fields: _Fields = [("name", model_of(index, part.name)), ("platform", "tensorrt_plan"), ("max_batch_size", 0)]
    for number, (_, type_) in enumerate(part.inputs):
        fields.append(("input", tuple(described(f"i{number}", type_, reshape=True))))
    for number, type_ in enumerate(part.outputs):
        fields.append(("output", tuple(described(f"o{number}", type_, reshape=True))))
    fields += _files(index)
    profiles = [str(number) for number in range(len(index.profiles))]
    fields.append(("instance_group", (("count", 1), ("kind", Word("KIND_GPU")), ("profile", profiles))))
    return fields


def _files(index: PackageIndex) -> _Fields:
    """Return the fields that map compute capabilities to plans."""
    fields: _Fields = []
    for name, target in index.targets.items():
        for sm in served_sms(target):
            if isinstance(sm, int):
                capability = f"{sm // 10}.{sm % 10}"
                fields.append(("cc_model_filenames", (("key", capability), ("value", f"{name}.plan"))))
            else:
                fields.insert(0, ("default_model_filename", f"{name}.plan"))
    return fields


def ensemble(index: PackageIndex) -> Message:
    """Return the configuration of the model: an ensemble with the engines as steps."""
    batch = max_batch_size(index)
    fields: _Fields = [("name", index.model), ("platform", "ensemble"), ("max_batch_size", batch)]
    for kind, tensors in (("input", index.inputs), ("output", index.outputs)):
        fields += [(kind, tuple(described(tensor.name, tensor, batched=batch > 0))) for tensor in tensors]
    names = _tensor_names(index)
    steps = tuple(("step", _step(index, part, names)) for part in _partitions(index))
    fields.append(("ensemble_scheduling", steps))
    return fields


def _step(index: PackageIndex, part: Partition, names: Mapping[str, str]) -> tuple[tuple[str, Value], ...]:
    inputs = {f"i{number}": names[source] for number, (source, _) in enumerate(part.inputs)}
    outputs = {f"o{number}": names[f"{part.name}:{number}"] for number in range(len(part.outputs))}
    return (
        ("model_name", model_of(index, part.name)),
        ("model_version", -1),
        *(("input_map", (("key", key), ("value", value))) for key, value in inputs.items()),
        *(("output_map", (("key", key), ("value", value))) for key, value in outputs.items()),
    )


def _tensor_names(index: PackageIndex) -> dict[str, str]:
    """Return reference → name of each tensor in the ensemble. Inner tensors are named by the partition and its output."""
    names = {f"input:{number}": tensor.name for number, tensor in enumerate(index.inputs)}
    partitions = next(iter(index.targets.values())).partitions
    names.update({source: tensor.name for source, tensor in zip(partitions.outputs, index.outputs, strict=True)})
    used_names = set(names.values())
    for part in partitions.partitions:
        for number in range(len(part.outputs)):
            name = f"{part.name}.o{number}"
            while name in used_names:
                name += "_"
            used_names.add(names.setdefault(f"{part.name}:{number}", name))
    return names
