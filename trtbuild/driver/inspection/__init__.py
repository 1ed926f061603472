"""``trtbuild inspect``: show the contents of a package, and further facts about it.

The index of a package is always known. These other facts may be missing:

* from the package: layers and their places in the user's module, the types of layers and weights, and ``provenance.json``
* from the cache: the recipe of an engine, for its trtexec command
* from this machine: the library that runs the engines, and the device memory that they need on its GPU
"""

from __future__ import annotations

import json
from pathlib import Path

from trtbuild.core.packages import provenance
from trtbuild.core.packages.name_table import NAMES_FILE
from trtbuild.driver.answers.package_facts import PackageFacts, facts_of_package
from trtbuild.driver.inspection.documents import InspectedEngine, Inspection, TrtexecCommand
from trtbuild.driver.inspection.layers import layers_of_engine, plan_contents, plans_of, read_json
from trtbuild.driver.inspection.memory import device_memory
from trtbuild.driver.inspection.onnx_files import write_onnx
from trtbuild.driver.inspection.source_form import source_form
from trtbuild.driver.inspection.target_libraries import target_libraries
from trtbuild.driver.inspection.trtexec import trtexec_command
from trtbuild.driver.packages.lookup import package_of
from trtbuild.driver.project.workspace import Request
from trtbuild.runtime.packages.package import Package, open_package


def inspect(
    request: Request, name: str, *, layers: bool = False, memory: bool = False, onnx: str | None = None
) -> Inspection:
    """Return the contents of a package. `name` is its directory or its model's name.

    With `layers`, the types of layers and weights are read from the plans. With `memory`, TensorRT reports how much
    device memory the engines need. `onnx` is a directory, relative to the project, to which the engines' ONNX
    models are written. Raises UsageError, PackageError, and with `onnx` the errors of `write_onnx`.
    """
    return inspect_directory(request, package_of(request, name), name, layers=layers, memory=memory, onnx=onnx)


def inspect_directory(
    request: Request, path: Path, name: str, *, layers: bool = False, memory: bool = False, onnx: str | None = None
) -> Inspection:
    """Return the contents of the package in the directory `path`, as `inspect` does. Messages call the package `name`."""
    package = open_package(path)
    layer_names = read_json(package, NAMES_FILE)
    offline = request.offline or onnx is None  # remotes are used only if ONNX models are written
    facts = facts_of_package(Path(request.project).absolute(), package, name, offline=offline)
    onnx_files = write_onnx(request, package.index, facts, onnx) if onnx is not None else {}
    plans = {plan: plan_contents(package, plan) for plan in plans_of(package)} if layers else {}
    engines = [
        InspectedEngine(
            target=target,
            partition=partition,
            plan=plan,
            size=package.index.files[plan].size,
            sha256=package.index.files[plan].sha256,
            layers=layers_of_engine(package, layer_names, target, partition, plans.get(plan)),
            weights=contents.weights if (contents := plans.get(plan)) is not None else None,
            onnx=onnx_files.get((target, partition)),
            trtexec=_trtexec(package, facts, target, partition, onnx_files.get((target, partition))),
        )
        for target, entry in package.index.targets.items()
        for partition, plan in entry.engines.items()
    ]
    return Inspection(
        path=str(package.path),
        source=source_form(layer_names),
        index=json.loads(package.index_bytes),
        engines=engines,
        libraries=target_libraries(package.index),
        memory=device_memory(package.path) if memory else None,
        provenance=provenance.parse(package.read_unlisted(provenance.PROVENANCE_FILE), package.digest),
    )


def _trtexec(
    package: Package, facts: PackageFacts, target: str, partition: str, onnx: str | None
) -> TrtexecCommand | None:
    recipe = facts.recipes.get(f"engine/{partition}@{target}")
    if recipe is None:
        return None
    entry = package.index.targets[target]
    engine_partition = next(each for each in entry.partitions.partitions if each.name == partition)
    return trtexec_command(
        recipe, engine_partition, entry.sms or (entry.sm,), onnx or f"{partition}.onnx", f"{partition}.plan"
    )
