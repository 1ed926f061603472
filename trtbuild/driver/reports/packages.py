"""The packages of a build: partitions, layers, and comparisons with PyTorch or onnxruntime."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.core.engines.engine_layers import Layer
from trtbuild.core.packages import provenance
from trtbuild.core.packages.name_table import NAMES_FILE
from trtbuild.core.packages.package_index import PackageIndex, PackedTarget, Tensors, size_text
from trtbuild.core.partition.partitions import Partition
from trtbuild.driver.inspection.layers import layers_of_engine, plan_contents, read_json
from trtbuild.driver.reports.documents import Cut, EngineRow, LayerRow, PackageView, PartitionRow
from trtbuild.errors import TrtbuildError
from trtbuild.runtime.packages.package import Package, open_package

#: The largest number of layers in a report. 50,000 layers are about 5 MB of the page.
MOST_LAYERS = 50_000
#: A larger engine is not read, because a report must not read gigabytes. Then the types that its layers read and write are
#: not known.
LARGEST_PLAN_BYTES = 256 << 20


@dataclass
class PackageViews:
    """The views of all packages. `left_out` is the number of layers that are not in `layers`."""

    packages: list[PackageView] = field(default_factory=list)
    engines: list[EngineRow] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


def view_packages(project: Path, paths: Mapping[str, str], modules: Mapping[str, Sequence[str]]) -> PackageViews:
    """The views of packages. `paths` maps models to their packages. A package that cannot be read becomes a note.

    `modules` maps models to the module paths of the operator calls of their lowered programs, if known."""
    views = PackageViews()
    for model, path in paths.items():
        try:
            package = open_package(project / path)
            _add_package(views, model, path, package, modules.get(model, ()))
        except (TrtbuildError, OSError) as error:
            views.notes.append(f"the package of model {model} cannot be read: {error}")
    return views


def _add_package(views: PackageViews, model: str, path: str, package: Package, modules: Sequence[str]) -> None:
    index, names = package.index, read_json(package, NAMES_FILE)
    layers = {
        (target, partition): _layers(package, names, target, partition, plan)
        for target, entry in index.targets.items()
        for partition, plan in entry.engines.items()
    }
    for (target, partition), found in layers.items():
        size = index.files[index.targets[target].engines[partition]].size
        engine = len(views.engines)
        views.engines.append(EngineRow(model=model, partition=partition, target=target, size=size, layers=len(found)))
        shown = found[: max(0, MOST_LAYERS - len(views.layers))]
        views.layers += [_layer_row(engine, layer) for layer in shown]
        views.left_out += len(found) - len(shown)
    parsed_provenance = provenance.parse(package.read_unlisted(provenance.PROVENANCE_FILE), package.digest)
    inputs, outputs = Tensors(index.inputs, index.dims), Tensors(index.outputs, index.dims)
    views.packages.append(
        PackageView(
            model=model,
            path=path,
            precision=", ".join((index.precision, *index.other_precisions, *index.quantized)),
            signature=f"{inputs!r} → {outputs!r}",
            cuts=_cuts(index, layers, modules),
            verified=parsed_provenance.verified,
            void=parsed_provenance.void,
        )
    )


def _layers(package: Package, names: object, target: str, partition: str, plan: str) -> list[Layer]:
    is_small = package.index.files[plan].size <= LARGEST_PLAN_BYTES
    contents = plan_contents(package, plan) if is_small else None
    return layers_of_engine(package, names, target, partition, contents)


def _layer_row(engine: int, layer: Layer) -> LayerRow:
    module = "" if layer.module is None else layer.module or "(model)"
    reads, writes = ", ".join(layer.reads or ()), ", ".join(layer.writes or ())
    return engine, layer.name, layer.type, module, layer.operator or "", reads, writes


def _cuts(index: PackageIndex, layers: Mapping[tuple[str, str], Sequence[Layer]], modules: Sequence[str]) -> list[Cut]:
    targets_by_partitions: dict[str, list[PackedTarget]] = {}
    for target in index.targets.values():
        partitions_text = json.dumps(target.partitions.to_json(), sort_keys=True)
        targets_by_partitions.setdefault(partitions_text, []).append(target)
    return [
        Cut(
            targets=[first.name, *(target.name for target in others)],
            partitions=[
                _partition_row(index, partition, layers.get((first.name, partition.name), ()), modules)
                for partition in first.partitions.partitions
            ],
        )
        for first, *others in targets_by_partitions.values()
    ]


def _partition_row(
    index: PackageIndex, partition: Partition, layers: Sequence[Layer], modules: Sequence[str]
) -> PartitionRow:
    paths = [modules[call] for call in partition.calls if 0 <= call < len(modules)] or [
        layer.module for layer in layers if layer.module is not None
    ]
    return PartitionRow(
        name=partition.name,
        kind=partition.kind,
        reads=list(dict.fromkeys(_name_of_value(index, source) for source, _ in partition.inputs)),
        outputs=[
            f"{tensor.dtype}[{', '.join(size_text(size, index.dims) for size in tensor.shape)}]"
            for tensor in partition.outputs
        ],
        calls=sum(1 for call in partition.calls if call >= 0),
        modules=dict(Counter(path or "(model)" for path in paths)),
        reasons=partition.reasons,
        types=sorted({type_ for layer in layers for type_ in (*(layer.reads or ()), *(layer.writes or ()))}),
    )


def _name_of_value(index: PackageIndex, source: str) -> str:
    """The origin of a value (`core.partition.partitions`): the name of an input or partition, ``state`` or ``weight``."""
    name, _, number = source.rpartition(":")
    if name == "input" and number.isdigit():
        position = int(number)
        return index.inputs[position].name if position < len(index.inputs) else "state"
    return name
