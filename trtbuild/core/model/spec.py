"""What manifests declare, as plain values: models, profiles, targets and settings.

Names are resolved (a model holds its profiles and targets themselves), shorthands are expanded, defaults are written
out. Where a value was declared is kept beside it (`Origin`) for messages, and never enters a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtbuild.core.values.encoding import Value
from trtbuild.core.values.value_ranges import ValueRange

#: ``module`` is one that a running program has in memory: no manifest can name it.
SourceKind = Literal["python", "exported_program", "torchscript", "onnx", "network", "module"]
#: What a source is traced to: a program of PyTorch's, or a graph that it already is.
SourceForm = Literal["program", "onnx", "network"]
Precision = Literal["float32", "float16", "bfloat16"]
Compatibility = Literal["exact", "same_compute_capability", "ampere_plus"]
ToolchainName = Literal["tensorrt-rtx", "tensorrt"]


@dataclass(frozen=True)
class Origin:
    """Where something was declared. `file` is relative to the project."""

    file: str
    line: int
    column: int = 1


@dataclass(frozen=True)
class Source:
    """Where a model comes from. `target` is ``module.path:callable``, or a file's path relative to the project."""

    kind: SourceKind
    target: str
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    deps: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cacheable: bool = True
    #: Directories (relative to the project) that ``python:`` modules are imported from, nearest first.
    roots: tuple[str, ...] = (".",)

    @property
    def file(self) -> str | None:
        """The file that it names; None for anything else."""
        return self.target if self.kind in ("exported_program", "torchscript", "onnx") else None

    @property
    def form(self) -> SourceForm:
        return self.kind if self.kind in ("onnx", "network") else "program"


@dataclass(frozen=True)
class Input:
    """One tensor that the model takes. Positional inputs are passed in order, keyword ones by name."""

    name: str
    dtype: str = "float32"
    keyword: bool = False
    #: The values that random inputs are drawn from, both ends included; None leaves them to who draws.
    range: ValueRange | None = None


@dataclass(frozen=True)
class NamedDim:
    """A named dimension: the places (input name, axis) that share it, and what its sizes are multiples of."""

    name: str
    at: tuple[tuple[str, int], ...]
    multiple_of: int = 1


@dataclass(frozen=True)
class ShapeRange:
    """The min, opt and max shape of one input; all of one rank, min ≤ opt ≤ max in each axis."""

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
    """How a lowered graph is cut, in Torch-TensorRT's terms. `granularity` is ``("model",)`` or module path patterns."""

    granularity: tuple[str, ...] = ("model",)
    min_block_size: int = 5
    torch_executed_ops: tuple[str, ...] = ()
    require_full_compilation: bool = False

    @property
    def by_module(self) -> bool:
        return self.granularity != ("model",)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartitionSettings:
        """Settings after a trip through JSON, which knows no tuples."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**plain)


@dataclass(frozen=True)
class BuilderSettings:
    """Every setting of TensorRT's ``IBuilderConfig`` that changes an engine, fully resolved.

    `workspace` is in bytes; None means all of the device's memory. The names follow `IBuilderConfig` and `BuilderFlag`.
    """

    optimization_level: int = 3
    workspace: int | None = None
    max_aux_streams: int | None = None
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = "none"
    l2_limit_for_tiling: int | None = None
    max_num_tactics: int | None = None
    avg_timing_iterations: int = 1
    tf32: bool = True
    sparse_weights: bool = False
    strict_nans: bool = False
    refit: bool = False
    strip_plan: bool = False
    weight_streaming: bool = False
    version_compatible: bool = False
    exclude_lean_runtime: bool = False
    distributive_independence: bool = False
    direct_io: bool = False
    require_user_allocation: bool = False
    monitor_memory: bool = False
    profiling_verbosity: Literal["layer_names_only", "detailed", "none"] = "detailed"
    #: Names of `TacticSource`, sorted; None leaves the library's own choice.
    tactic_sources: tuple[str, ...] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BuilderSettings:
        """Settings after a trip through JSON, which knows no tuples."""
        sources = data.get("tactic_sources")
        return cls(**{**data, "tactic_sources": None if sources is None else tuple(sources)})


@dataclass(frozen=True)
class Target:
    """What an engine is built for. `sm` is ten times the compute capability: 89 is SM 8.9. `version` is a pin."""

    name: str
    sm: int
    toolchain: ToolchainName = "tensorrt-rtx"
    version: str | None = None
    compatibility: Compatibility = "exact"
    #: ``<os>-<cpu>`` of the machine that will run the engine, such as linux-x86_64.
    platform: str = "linux-x86_64"


@dataclass(frozen=True)
class Model:
    """One model of the project, whole: nothing is left to look up."""

    name: str
    source: Source
    inputs: tuple[Input, ...]
    profiles: tuple[Profile, ...]
    targets: tuple[Target, ...]
    origin: Origin
    dims: tuple[NamedDim, ...] = ()
    weights: str | None = None
    precision: Precision = "float32"
    #: Whether its package has the program of every partition and all weights, so that it runs without any engine.
    reference: bool = False
    partition: PartitionSettings = PartitionSettings()
    builder: BuilderSettings = BuilderSettings()
    #: kind (package, plans, …) → path relative to the project.
    outputs: tuple[tuple[str, str], ...] = ()
    #: Places of single fields, by dotted path inside the model, for messages: ``inputs.image`` → Origin.
    places: Mapping[str, Origin] = field(default_factory=dict, compare=False, hash=False)


@dataclass(frozen=True)
class Project:
    """All models, in the order of their declaration, and the manifest files (includes too) they were read from.

    `digests` are the SHA-256 of the bytes that were read of each of `files`.
    """

    models: tuple[Model, ...]
    files: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
