"""Writes a package's index: the values of `core.packages.package_index` as the bytes of ``index.json``.

Members that were added to the format later are left out if they have their defaults. So the index of a package that does
not need them has the same bytes as before.
"""

from __future__ import annotations

import json
from typing import Any

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.package_index import (
    PackageIndex,
    PackedDim,
    PackedProfile,
    PackedTarget,
    PackedTensor,
    PackedWeight,
)


def index_to_bytes(index: PackageIndex) -> bytes:
    """Return the content of ``index.json``. Raises KeyError if a program or weight is not in `index.files`."""
    return json.dumps(index_to_json(index), indent=1, sort_keys=True).encode()


def index_to_json(index: PackageIndex) -> dict[str, Any]:
    """Return the JSON of an index, the inverse of `package_reading.parse_index`. Raises KeyError like `index_to_bytes`."""
    return {
        "schema": index.schema,
        "model": index.model,
        "inputs": [{**_tensor(entry), "keyword": entry.keyword, **_range(entry)} for entry in index.inputs],
        "outputs": [_tensor(entry) for entry in index.outputs],
        "output_tree": index.output_tree,
        "dims": [dim_to_json(dim) for dim in index.dims],
        "profiles": [_profile(profile, index) for profile in index.profiles],
        "precision": index.precision,
        **({"other_precisions": list(index.other_precisions)} if index.other_precisions else {}),
        **({"truncate_double": True} if index.truncates_double else {}),
        **({"quantized": list(index.quantized)} if index.quantized else {}),
        **({"operators": [operator.to_json() for operator in index.operators]} if index.operators else {}),
        **({"state": [entry.to_json() for entry in index.state]} if index.state else {}),
        **({"plugins": index.plugins.to_json()} if index.plugins is not None else {}),
        "targets": {name: _target(target, index) for name, target in index.targets.items()},
        "reference": index.reference,
        "weights": {str(slot): _weight(weight, index) for slot, weight in index.weights.items()},
        "files": {path: output.to_json() for path, output in index.files.items()},
    }


def dim_to_json(dim: PackedDim) -> dict[str, Any]:
    return {"name": dim.name, "min": dim.min, "max": dim.max, "multiple_of": dim.multiple_of}


def shape_to_json(shape: ShapeRange) -> dict[str, list[int]]:
    return {"min": list(shape.min), "opt": list(shape.opt), "max": list(shape.max)}


def _profile(profile: PackedProfile, index: PackageIndex) -> dict[str, Any]:
    shapes = zip(index.inputs, profile.shapes, strict=True)
    return {"name": profile.name, "shapes": {entry.name: shape_to_json(shape) for entry, shape in shapes}}


def _tensor(tensor: PackedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}


def _range(tensor: PackedTensor) -> dict[str, Any]:
    return {} if tensor.range is None else {"range": tensor.range}


def _target(target: PackedTarget, index: PackageIndex) -> dict[str, Any]:
    programs = {graph: index.files[path].sha256 for graph, path in target.programs.items()}
    return {
        "sm": target.sm,
        "sms": target.sms,
        "toolchain": target.toolchain,
        "version": target.version,
        "version_compatible": target.version_compatible,
        **({"exclude_lean_runtime": True} if target.exclude_lean_runtime else {}),
        "compatibility": target.compatibility,
        "platform": target.platform,
        "partitions": {**target.partitions.to_json(), "programs": programs},
        "engines": target.engines,
        "layers": target.layers,
    }


def _weight(weight: PackedWeight, index: PackageIndex) -> dict[str, Any]:
    sha256 = index.files[weight.path].sha256
    return {"name": weight.name, "dtype": weight.dtype, "shape": weight.shape, "sha256": sha256}
