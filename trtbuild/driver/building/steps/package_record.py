"""Create the record of a package from the blobs of its engines. This needs no worker."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from trtbuild.core.engines.engine_layers import quantized_types
from trtbuild.core.model.quantized_types import QUANTIZED_TYPES
from trtbuild.core.packages.contents import PackageContents
from trtbuild.core.packages.name_table import name_table
from trtbuild.core.packages.package_indexing import package_index
from trtbuild.core.packages.package_writing import index_to_bytes
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.store.layers.layered import LayeredStore


def publish_package(recipe: Recipe, plan: ModelPlan, store: LayeredStore, lookups: StoreLookups) -> Record:
    """Create a package from blobs in the store, and publish its record. Raises BlobMissing."""
    return store.put_record(create_package_record(recipe, plan, store, lookups), replace=True)


def create_package_record(recipe: Recipe, plan: ModelPlan, store: LayeredStore, lookups: StoreLookups) -> Record:
    """Create a package from blobs in the store. Returns its unpublished record. Raises BlobMissing."""
    contents = plan.contents
    if contents is None:
        raise AssertionError("a package is made after its contents are known")
    # an engine may be in a remote cache only
    store.fetch(blob.sha256 for engine in contents.engines for blob in (engine.plan, engine.layers) if blob is not None)
    if contents.packed_library is not None:
        lookups.files.put_blobs(plan.model, [contents.packed_library.sha256])
    names = store.put_bytes(json.dumps(_names_of_targets(contents, lookups), indent=1, sort_keys=True).encode())
    index = index_to_bytes(package_index(contents, names, _quantized_types(contents, lookups)))
    plans = contents.plans()
    outputs = {"index": store.put_bytes(index), "names": names}
    for engine in contents.engines:
        if engine.plan is not None and engine.layers is not None:
            outputs[f"plan:{engine.partition}@{engine.target}"] = engine.plan
            outputs[f"layers:{engine.partition}@{engine.target}"] = engine.layers
    if contents.packed_library is not None:
        outputs["plugin library"] = contents.packed_library
    return Record(recipe, outputs, {"plans": plans})


def _quantized_types(contents: PackageContents, lookups: StoreLookups) -> list[str]:
    """The quantized types in the layers of the engines. Layers that cannot be parsed are ignored."""
    found: set[str] = set()
    for sha256 in {engine.layers.sha256 for engine in contents.engines if engine.layers is not None}:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found.update(quantized_types(json.loads(lookups.blob(sha256))))
    return [type_ for type_ in QUANTIZED_TYPES if type_ in found]


def _names_of_targets(contents: PackageContents, lookups: StoreLookups) -> dict[str, object]:
    """The content of ``names.json``: target → TensorRT partition → ONNX node → module path and operator."""
    modules = json.loads(lookups.blob(contents.modules.sha256))
    return {
        target: name_table(partitions, modules, read_origins(contents, target, lookups))
        for target, partitions in contents.partitions_by_target.items()
    }


def read_origins(contents: PackageContents, target: str, lookups: StoreLookups) -> dict[str, Any]:
    """The origins of the nodes of a target's engines, for `name_table`."""
    return {graph: json.loads(lookups.blob(sha256)) for graph, sha256 in contents.origins_of(target).items()}
