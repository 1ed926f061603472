"""The contents of manifests as plain values: models, profiles, targets and settings.

A model contains its profiles and targets, not their names. Shorthands are expanded, and defaults are filled in. The place
of each declaration (`Origin`) is stored for messages, and is never in a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.graph_kinds import GraphKind
from trtbuild.core.model.plugins import Plugins
from trtbuild.core.model.precisions import ModulePrecision, Precisions
from trtbuild.core.model.precisions import Precision as Precision
from trtbuild.core.model.quantization import Quantization
from trtbuild.core.model.source_kinds import MODULE_IN_MEMORY, SOURCE_KINDS
from trtbuild.core.values.encoding import Value, from_json, to_json_in_order
from trtbuild.core.values.value_ranges import ValueRange

Compatibility = Literal["exact", "same_compute_capability", "ampere_plus"]
ToolchainName = Literal["tensorrt-rtx", "tensorrt"]


@dataclass(frozen=True)
class Origin:
    """The place of a declaration. `file` is relative to the project; `line` and `column` count from 1."""

    file: str
    line: int
    column: int = 1


@dataclass(frozen=True)
class Source:
    """The source of a model. `kind` is the name of a `trtbuild.core.model.source_kinds.SourceKind`.

    `target` is ``module.path:callable``, a file's path relative to the project, or the name of a module in memory. The
    manifest declares two kinds of dependencies: `deps` are paths or globs, and `env` are environment variables. If
    `cacheable` is False, every build traces the model.
    """

    kind: str
    target: str
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    deps: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cacheable: bool = True
    #: The directories, relative to the project, that are searched in this order for the module of a callable.
    roots: tuple[str, ...] = (".",)

    @property
    def file(self) -> str | None:
        """The path of the source's file, or None if the source is not a file."""
        return self.target if SOURCE_KINDS.get(self.kind, MODULE_IN_MEMORY).file is not None else None

    @property
    def graph(self) -> GraphKind:
        return SOURCE_KINDS.get(self.kind, MODULE_IN_MEMORY).graph

    def to_json(self) -> dict[str, Any]:
        """The JSON form. In kwargs, floats keep their bits, and inner mappings keep their order."""
        return {**vars(self), "kwargs": to_json_in_order(dict(sorted(self.kwargs.items())))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Source:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for data of another form."""
        kwargs = from_json(data["kwargs"])
        if not isinstance(kwargs, Mapping):
            raise ValueError("a source's kwargs must be a mapping")
        tuples = {name: tuple(data[name]) for name in ("deps", "env", "roots")}
        return cls(**{**data, **tuples, "kwargs": kwargs})


@dataclass(frozen=True)
class Input:
    """One tensor that the model takes. Positional inputs are passed in order, keyword inputs by name."""

    name: str
    dtype: str = "float32"
    keyword: bool = False
    #: The range of random values for this input, both ends included. If None, the code that draws the values chooses it.
    range: ValueRange | None = None


@dataclass(frozen=True)
class NamedDim:
    """A named dimension. `at` are the axes that share it: (input name, axis). Its sizes are multiples of `multiple_of`."""

    name: str
    at: tuple[tuple[str, int], ...]
    multiple_of: int = 1


@dataclass(frozen=True)
class ShapeRange:
    """The min, opt and max shape of one input, with min ≤ opt ≤ max in each axis (`declared_shapes` checks this)."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """A TensorRT optimization profile: a shape range for each input, in the order of the model's inputs."""

    name: str
    shapes: tuple[tuple[str, ShapeRange], ...]


@dataclass(frozen=True)
class PartitionSettings:
    """Settings for dividing a graph into partitions. All except `granularity` have Torch-TensorRT's names.

    `granularity` is ``("model",)``, or patterns of module paths. Each call of a matching module is partitioned separately,
    usually into one engine."""

    granularity: tuple[str, ...] = ("model",)
    min_block_size: int = 5
    torch_executed_ops: tuple[str, ...] = ()
    require_full_compilation: bool = False
    #: Whether float64 values are computed in float32 (the lower step inserts the casts). Otherwise they stay in PyTorch.
    truncate_double: bool = False

    @property
    def divides_by_module(self) -> bool:
        return self.granularity != ("model",)


@dataclass(frozen=True)
class Target:
    """The GPU, toolchain and platform that an engine is built for.

    `sm` is ten times NVIDIA's compute capability: 89 for 8.9. `version` is the toolchain's version, None if the manifest
    does not name it.
    """

    name: str
    sm: int
    toolchain: ToolchainName = "tensorrt-rtx"
    version: str | None = None
    compatibility: Compatibility = "exact"
    #: ``<os>-<cpu>`` of the machine that will run the engine, such as linux-x86_64.
    platform: str = "linux-x86_64"


@dataclass(frozen=True)
class Model:
    """One model of the project, with everything that the manifest says about it."""

    name: str
    source: Source
    inputs: tuple[Input, ...]
    profiles: tuple[Profile, ...]
    targets: tuple[Target, ...]
    origin: Origin
    dims: tuple[NamedDim, ...] = ()
    #: The path of the weights file, relative to the project.
    weights: str | None = None
    precision: Precision = "float32"
    #: The modules that compute in another precision.
    module_precisions: tuple[ModulePrecision, ...] = ()
    #: Whether the package has all weights and the program of each partition, so that it can run without engines.
    reference: bool = False
    partition: PartitionSettings = PartitionSettings()
    quantization: Quantization | None = None
    #: Patterns of the names of buffers that a call reads and writes.
    state: tuple[str, ...] = ()
    #: The operators that become TensorRT plugins.
    plugins: Plugins | None = None
    builder: BuilderSettings = field(default_factory=BuilderSettings)
    #: Kind of output (package, plans, …) → path relative to the project.
    outputs: tuple[tuple[str, str], ...] = ()
    #: The places of fields, for messages, by dotted path inside the model: ``inputs.image`` → Origin.
    places: Mapping[str, Origin] = field(default_factory=dict, compare=False, hash=False)

    @property
    def precisions(self) -> Precisions:
        return Precisions(self.precision, self.module_precisions)


@dataclass(frozen=True)
class Project:
    """All models in the order of their declaration.

    `files` are the manifest files that were read, and `digests` the SHA-256 of each file's content.
    """

    models: tuple[Model, ...]
    files: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
