"""Read the layers of engines from the files of a package."""

from __future__ import annotations

import json
from typing import Any

from trtbuild.core.engines.engine_layers import Layer, read_layers
from trtbuild.core.engines.plan_contents import PlanContents
from trtbuild.errors import PackageError
from trtbuild.runtime.packages.package import Package
from trtbuild.toolchain.compiling.plan_reading import read_plan


def read_json(package: Package, name: str) -> Any:
    """Return a JSON document of a package, or None if it is missing or damaged."""
    try:
        return json.loads(bytes(package.read([name])[name]))
    except (KeyError, PackageError, ValueError):
        return None


def plans_of(package: Package) -> list[str]:
    """Return the paths of the plans of a package."""
    return [plan for target in package.index.targets.values() for plan in target.engines.values()]


def plan_contents(package: Package, plan: str) -> PlanContents | None:
    """Return the types and kernels that a plan names, or None if it names no kernels or is damaged."""
    try:
        return read_plan(package.read([plan])[plan])
    except PackageError:
        return None


def layers_of_engine(
    package: Package, names: Any, target: str, partition: str, contents: PlanContents | None
) -> list[Layer]:
    """Return the layers of an engine, or an empty list if the package does not name them.

    `names` is the package's document ``names.json``, and `contents` the result of `plan_contents`.
    """
    path = package.index.targets[target].layers.get(partition)
    if path is None:
        return []
    try:
        return read_layers(read_json(package, path), names[target][partition], contents)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
