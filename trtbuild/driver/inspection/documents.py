"""The documents of ``inspect``, as ``--json`` prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.core.engines.engine_layers import Layer
from trtbuild.core.model.graph_kinds import GraphKindName
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_reading import parse_index
from trtbuild.core.packages.provenance import Provenance
from trtbuild.core.values.codec import optional


@dataclass(frozen=True, kw_only=True)
class TrtexecCommand:
    """A command that builds the engine with NVIDIA's `tool`.

    `differs` lists the differences from the engine step that no argument can express. `text` is the whole command, quoted
    for a shell.
    """

    tool: str
    arguments: Sequence[str]
    differs: Sequence[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class InspectedEngine:
    """An engine of a package.

    * `plan`: its file, of `size` bytes
    * `layers`: empty if the package does not list the layers
    * `weights`: element type → bytes of the weights that the plan stores in this type. Null without ``--layers``, or if the
      plan is damaged or names no kernels
    * `onnx`: the file of the engine's ONNX model. Null without ``--onnx``
    * `trtexec`: null if the recipe of the engine is not in the cache
    """

    target: str
    partition: str
    plan: str
    size: int
    sha256: str
    layers: Sequence[Layer]
    weights: Mapping[str, int] | None
    onnx: str | None
    trtexec: TrtexecCommand | None


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The device memory that the engines of `target` need on the GPU `device`.

    `contexts` maps the name of a partition to one number for each profile: the bytes that one execution context needs for
    activations. If nothing was measured, `because` is the reason, `contexts` is empty, and `target` and `device` are null.
    """

    target: str | None
    contexts: Mapping[str, Sequence[int]]
    because: str | None
    device: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class TargetLibrary:
    """The name, such as ``tensorrt_lean``, and the version of the installed library that runs the engines of `target`.

    If no installed library runs them, `library` and `version` are null, and `because` is the reason. The GPU of this
    machine is not considered.
    """

    target: str
    library: str | None
    version: str | None
    because: str | None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The contents of a package.

    * `source`: the kind of graph of the package's model. Null if it is not clear
    * `index`: the package's ``index.json`` (``trtbuild.package/1``, ``/2`` or ``/3``) without changes, because another
      version of trtbuild may have written the package
    * `libraries`: an entry for each target with engines
    * `memory`: null without ``--memory``
    """

    schema: Literal["trtbuild.inspect/1"] = "trtbuild.inspect/1"
    path: str
    source: GraphKindName | None
    index: Mapping[str, Any]
    engines: Sequence[InspectedEngine]
    libraries: Sequence[TargetLibrary]
    memory: DeviceMemory | None
    provenance: Provenance

    @property
    def package(self) -> PackageIndex:
        """The values of `index`. Raises PackageDamaged."""
        return parse_index(self.index)


@dataclass(frozen=True, kw_only=True)
class MissingPackage:
    """A model without a package. `hint` says what to do."""

    model: str
    reason: str
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Inspections:
    """The contents of all packages of a project, in the order of the manifests, and the models that have no package."""

    schema: Literal["trtbuild.inspections/1"] = "trtbuild.inspections/1"
    packages: Sequence[Inspection]
    missing: Sequence[MissingPackage]
