"""Decide whether Triton itself can run the engines of a package, by its TensorRT backend and its ensembles.

Rules (some with their place in triton-inference-server's sources)
1. The backend `tensorrt` links one version of TensorRT, and accepts only plans of that library, not of TensorRT-RTX.
   Engines that call plugins are refused, because the server would have to load the library of the plugins.
2. The backend chooses a plan only by compute capability (`cc_model_filenames`). So it cannot distinguish two targets with
   the same SM, or two targets of different platforms.
3. An ensemble has one step for each partition. So all targets need the same partitions, and each partition needs an engine.
   Every step needs an input (ensemble_utils.cc). Its inputs are inputs of the model or outputs of steps, not weights. Every
   input of the model is the input of a step. Each output of the ensemble is a different output of a step. So an output of
   the model cannot be an input, a weight, or the same tensor as another output.
4. A plan has the dtypes of its partition only if the target's TensorRT supports them.
5. The backend computes the sizes of outputs from input shapes, so they must not depend on the values of inputs.
6. The backend's check of the configuration reads axis 0 of tensors, so at least one tensor of a plan must have an axis
   (model_state.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtbuild.core.packages.package_index import PackageIndex, PackedTarget
from trtbuild.core.values.expressions import depends_on_data
from trtbuild.toolchain.libraries.releases import release


def unsupported_reason(index: PackageIndex) -> str | None:
    """Return a reason why Triton cannot run the engines itself, or None if it can."""
    return next(_reasons(index), None)


def _reasons(index: PackageIndex) -> Iterator[str]:
    if index.plugins is not None:
        yield "its engines call plugins, whose library the server would have to load"
    targets = index.targets
    for name, target in targets.items():
        if target.toolchain != "tensorrt":
            yield f"target {name} is built with {target.toolchain}, whose plans Triton's TensorRT backend does not accept"
    versions = {target.version for target in targets.values()}
    platforms = {target.platform for target in targets.values()}
    for subject, values in (("versions of TensorRT", versions), ("platforms", platforms)):
        if len(values) > 1:
            yield f"its targets need different {subject} ({' and '.join(sorted(values))}), but a server has one"
    yield from _ambiguous_targets(targets)
    interfaces = [_interface(target) for target in targets.values()]
    if any(interface != interfaces[0] for interface in interfaces):
        yield "its targets have different partitions"
    for target in targets.values():
        yield from _partition_reasons(index, target)


def _ambiguous_targets(targets: Mapping[str, PackedTarget]) -> Iterator[str]:
    """Yield the reasons of rule 2 about the SMs of targets."""
    first_targets: dict[object, str] = {}
    for name, target in targets.items():
        for sm in served_sms(target):
            earlier = first_targets.setdefault(sm, name)
            if earlier != name:
                gpus = f"SM {sm}" if isinstance(sm, int) else "all later GPUs"
                yield f"targets {earlier} and {name} are both for {gpus}"


def served_sms(target: PackedTarget) -> list[int | str]:
    """Return the SMs of a target's plans, or ``["default"]`` if the plans also run on later GPUs."""
    return ["default"] if target.compatibility == "ampere_plus" else [*(target.sms or (target.sm,))]


def _interface(target: PackedTarget) -> object:
    partitioning = target.partitions
    return [
        (partition.name, partition.inputs, partition.outputs) for partition in partitioning.partitions
    ], partitioning.outputs


def _partition_reasons(index: PackageIndex, target: PackedTarget) -> Iterator[str]:
    """Yield the reasons of rules 3 to 6."""
    supported_dtypes = release("tensorrt", target.version).dtypes
    used_sources: set[str] = set()
    for partition in target.partitions.partitions:
        name = partition.name
        if partition.kind != "tensorrt":
            yield f"partition {name} runs in PyTorch"
        sources = [source for source, _ in partition.inputs]
        used_sources.update(sources)
        if not sources:
            yield f"partition {name} has no input"
        if any(source.startswith("weight:") for source in sources):
            yield f"partition {name} has a weight as an input"
        tensors = [*(type_ for _, type_ in partition.inputs), *partition.outputs]
        for type_ in tensors:
            if type_.dtype not in supported_dtypes:
                yield f"partition {name} has the type {type_.dtype}, which TensorRT {target.version} does not support"
        if not any(type_.shape for type_ in tensors):
            yield f"partition {name} has only scalar tensors"
        if any(depends_on_data(size) for type_ in partition.outputs for size in type_.shape):
            yield f"partition {name} has an output whose size depends on the values of its inputs"
    if not target.partitions.partitions:
        yield "it has no engine"
    outputs = target.partitions.outputs
    if len(set(outputs)) < len(outputs) or any(source.startswith(("input:", "weight:")) for source in outputs):
        yield "an output of the model is also an input, a weight or another output"
    if any(f"input:{number}" not in used_sources for number in range(len(index.inputs))):
        yield "an input of the model is not used"
