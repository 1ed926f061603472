"""What may be written in a manifest, as pydantic models: fields, kinds, ranges and defaults, and nothing else.

What needs two entries (names that must exist, shapes that must agree, files that must be there) is checked in
`declared`, `resolve` and their neighbours. Docstrings and descriptions are shown by editors and in docs/manifest.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trtbuild.core.model.spec import BuilderSettings, PartitionSettings
from trtbuild.manifest.format import kinds
from trtbuild.manifest.format.kinds import Allowed, Identifier, Name, PathText, refused
from trtbuild.manifest.format.value_ranges import Values

_SETTINGS = BuilderSettings()
_PARTITION = PartitionSettings()


class Fields(BaseModel):
    """Strict: no unknown field, no value of another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _with_shorthands(schema: dict[str, Any]) -> None:
    """A dim may be its places alone."""
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{key: part for key, part in whole["properties"]["at"].items() if key != "description"}, whole]


class TargetFields(Fields):
    """A GPU architecture and what an engine for it is built with."""

    sm: kinds.Sm = Field(description="Ten times the compute capability of the GPU: 89 is SM 8.9 (Ada).", examples=[89])
    toolchain: kinds.Toolchain | None = Field(
        None,
        description="The TensorRT that compiles. Wins over the model's and the defaults' `toolchain`.",
        json_schema_extra={"default": "tensorrt-rtx"},
    )
    version: kinds.Version | None = Field(None, description="A pin of the toolchain's version, in quotes.")
    compatibility: kinds.Compatibility = Field(
        "exact", description="Which GPUs may run the engine: this SM, its compute capability, or Ampere and newer."
    )
    platform: kinds.Platform | None = Field(
        None, description="`<os>-<cpu>` of the machine that runs the engine. This machine's unless said."
    )


class ShapeFields(Fields):
    """One input's shapes in a profile: `min`, `opt` and `max`, or `shape` where all three are equal."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["shape"], "maxProperties": 1}, {"required": ["min", "opt", "max"]}]}
    )

    min: kinds.Shape | None = Field(None, description="The smallest shape.", examples=[[1, 3, 224, 224]])
    opt: kinds.Shape | None = Field(None, description="The shape to tune for.", examples=[[8, 3, 224, 224]])
    max: kinds.Shape | None = Field(None, description="The largest shape.", examples=[[32, 3, 224, 224]])
    shape: kinds.Shape | None = Field(None, description="A static shape: min = opt = max.", examples=[[1, 3, 224, 224]])

    @model_validator(mode="after")
    def _exactly_one_form(self) -> ShapeFields:
        given = self.model_fields_set
        ranged = [name for name in ("min", "opt", "max") if name in given]
        missing = [name for name in ("min", "opt", "max") if name not in given]
        if "shape" in given and ranged:
            raise refused(f"`shape` and `{ranged[0]}` stand together", "write shape alone, or min, opt and max")
        if "shape" not in given and missing:
            names = " and ".join(f"`{name}`" for name in missing)
            raise refused(
                f"{names} {'is' if len(missing) == 1 else 'are'} missing",
                "write min, opt and max, or shape alone for a static shape",
            )
        if any(getattr(self, name) is None for name in given):
            raise refused("a shape is a list of sizes, not nothing (null)", "write [] for a scalar")
        return self


class InputFields(Fields):
    """A tensor that the model takes."""

    dtype: kinds.Dtype = Field("float32", description="Its element type.")
    keyword: bool = Field(False, description="Whether it is passed by name instead of by position.")
    range: Values | None = Field(
        None,
        description="The smallest and the largest value of random inputs: of the trace's proof, `verify`, `run` and "
        "`bench`. Without it floats are normal, and integers are 0 or 1 (`verify`: the rows of the table that they choose "
        "from). No engine depends on it.",
    )


class DimFields(Fields):
    """A named dimension. Its range comes from the profiles. `batch: image.0` is short for `batch: {at: [image.0]}`."""

    model_config = ConfigDict(json_schema_extra=_with_shorthands)

    at: kinds.Places = Field(description="The axes that have this size; one dim may stand at several.")
    multiple_of: kinds.Count = Field(1, description="What every size of this dim is a multiple of.")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"at": value} if isinstance(value, str | list) else value


class SourceFields(Fields):
    """Where the model comes from: exactly one of `python`, `exported_program`, `onnx`, `torchscript` and `network`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [kind]} for kind in kinds.SOURCES],
            "dependentSchemas": {"kwargs": {"anyOf": [{"required": [kind]} for kind in ("python", "network")]}},
        }
    )

    python: kinds.Callable_ | None = Field(
        None, description="A callable that returns an `nn.Module` in evaluation mode, as `module.path:callable`."
    )
    exported_program: PathText | None = Field(
        None, description="A `.pt2` file of `torch.export.save`.", examples=["vit.pt2"]
    )
    onnx: PathText | None = Field(
        None, description="An ONNX file; its external data lies beside it.", examples=["vit.onnx"]
    )
    torchscript: PathText | None = Field(
        None, description="A TorchScript file of `torch.jit.save`.", examples=["vit.ts"]
    )
    network: kinds.Callable_ | None = Field(
        None,
        description="A callable that defines a TensorRT network, as `module.path:callable`: it is called with the network, "
        "TensorRT's module and the kwargs.",
    )
    kwargs: dict[str, Any] | None = Field(
        None, description="Keyword arguments of the `python` or `network` callable.", examples=[{"depth": 12}]
    )
    deps: list[PathText] | None = Field(
        None, description="More files that the source depends on: paths or globs, relative to this file."
    )
    env: list[kinds.EnvironmentName] | None = Field(
        None, description="Environment variables that the source depends on."
    )
    cacheable: bool = Field(True, description="false where the source depends on what cannot be seen (network, clock).")


class PartitionFields(Fields):
    """How the lowered graph is cut, in Torch-TensorRT's terms."""

    granularity: kinds.Granularity = Field(
        list(_PARTITION.granularity),
        description="`model` for one engine per convertible region, or module paths: each match is an engine.",
        json_schema_extra={"default": "model"},
    )
    min_block_size: kinds.Count = Field(
        _PARTITION.min_block_size, description="The fewest operators that are an engine, where a model is split."
    )
    torch_executed_ops: kinds.Operators = Field(
        list(_PARTITION.torch_executed_ops), description="Operators that stay in PyTorch.", examples=[["aten.cumsum"]]
    )
    require_full_compilation: bool = Field(
        _PARTITION.require_full_compilation, description="Whether anything that stays in PyTorch is an error."
    )


class BuilderFields(Fields):
    """TensorRT's builder settings, named as `IBuilderConfig` and `BuilderFlag` name them."""

    optimization_level: kinds.Level = Field(
        _SETTINGS.optimization_level, description="How long TensorRT looks for faster kernels."
    )
    workspace: kinds.Bytes | None = Field(
        _SETTINGS.workspace, description="The most scratch memory; null is all of the device's."
    )
    max_aux_streams: kinds.CountOrNone | None = Field(
        _SETTINGS.max_aux_streams, description="The most extra streams; null lets TensorRT choose."
    )
    tiling_optimization_level: kinds.Tiling = Field(
        _SETTINGS.tiling_optimization_level, description="How long TensorRT looks for tilings."
    )
    l2_limit_for_tiling: kinds.Bytes | None = Field(
        _SETTINGS.l2_limit_for_tiling, description="The L2 cache that tiling may use; null lets TensorRT choose."
    )
    max_num_tactics: kinds.Count | None = Field(
        _SETTINGS.max_num_tactics, description="The most tactics that are timed; null lets TensorRT choose."
    )
    avg_timing_iterations: kinds.Count = Field(
        _SETTINGS.avg_timing_iterations, description="How often a tactic is timed."
    )
    tf32: bool = Field(_SETTINGS.tf32, description="Whether float32 products may use TF32.")
    sparse_weights: bool = Field(_SETTINGS.sparse_weights, description="Whether to look for 2:4 sparse weights.")
    strict_nans: bool = Field(_SETTINGS.strict_nans, description="Whether NaN is handled as IEEE 754 says.")
    refit: bool = Field(_SETTINGS.refit, description="Whether the engine's weights can be replaced.")
    strip_plan: bool = Field(_SETTINGS.strip_plan, description="Whether weights are left out of the plan.")
    weight_streaming: bool = Field(
        _SETTINGS.weight_streaming, description="Whether weights may be streamed from the host."
    )
    version_compatible: bool = Field(
        _SETTINGS.version_compatible, description="Whether later TensorRT versions may run the engine."
    )
    exclude_lean_runtime: bool = Field(
        _SETTINGS.exclude_lean_runtime,
        description="Whether a version-compatible plan leaves the lean runtime out. "
        "`trtbuild.load` runs it with the version that built it alone: later ones want that version's lean runtime "
        "beside it (`IRuntime.load_runtime`), for a program that runs the plans itself.",
    )
    distributive_independence: bool = Field(
        _SETTINGS.distributive_independence, description="Whether results do not depend on other axes' sizes."
    )
    direct_io: bool = Field(_SETTINGS.direct_io, description="Whether inputs and outputs are never reformatted.")
    require_user_allocation: bool = Field(
        _SETTINGS.require_user_allocation, description="Whether the caller gives all device memory."
    )
    monitor_memory: bool = Field(_SETTINGS.monitor_memory, description="Whether TensorRT logs its memory use.")
    profiling_verbosity: kinds.Verbosity = Field(
        _SETTINGS.profiling_verbosity, description="What the engine tells about its layers."
    )
    tactic_sources: kinds.TacticSources | None = Field(
        None,
        description="Libraries whose kernels `tensorrt` may take; [] is none, and null lets TensorRT choose.",
        examples=[[]],
    )


class OutputFields(Fields):
    """What is written, and where. Paths are relative to the project."""

    package: PathText | None = Field(None, description="A package directory.", examples=["dist/vit"])
    plans: PathText | None = Field(None, description="A directory of raw plans for trtexec.", examples=["dist/plans"])
    triton: PathText | None = Field(None, description="A Triton model repository, which models may share.")
    pt2: PathText | None = Field(
        None,
        description="A `.pt2` file for `torch.export.load`; `<name>.<target>.pt2` each where there are several targets.",
        examples=["dist/vit.pt2"],
    )


_Names = Annotated[list[str], Field(min_length=1), Allowed("a list of names such as [a, b]")]


class DefaultsFields(Fields):
    """What holds for models that do not say it."""

    toolchain: kinds.Toolchain = Field(
        "tensorrt-rtx", description="The TensorRT that compiles, for targets that do not say it."
    )
    weights: PathText | None = Field(
        None,
        description="A weights file, relative to this file, loaded strictly into the module.",
        examples=["weights/vit.safetensors"],
    )
    inputs: dict[Identifier, InputFields | None] | None = Field(
        None, description="The tensors that the model takes; positional ones in the order of its arguments."
    )
    dims: dict[Identifier, DimFields] | None = Field(None, description="Named dimensions and their relations.")
    profiles: _Names = Field(
        [], description="The names of the model's profiles; one engine has them all, in this order."
    )
    targets: _Names = Field([], description="The names of the targets that the model is built for.")
    precision: kinds.Precision = Field("float32", description="What the model computes in, inside.")
    reference: bool = Field(
        False,
        description="Whether the package has all programs and weights, so that it runs on a CPU, too, without engines.",
    )
    partition: PartitionFields | None = Field(None, description="How the graph is cut into engines.")
    builder: BuilderFields | None = Field(None, description="TensorRT's builder settings.")
    outputs: OutputFields | None = Field(
        None, description="What is written, and where; `{package: dist/<model>}` unless said."
    )


class ModelFields(DefaultsFields):
    """A model: its source, its inputs, and what is built of it."""

    # Required, which `resolve` says: pydantic would give up on the model's other fields without it.
    model_config = ConfigDict(json_schema_extra={"required": ["source"]})

    source: SourceFields | None = Field(None, description="Where the model comes from.")


class ManifestFields(Fields):
    """A manifest of trtbuild."""

    version: Literal[1] = Field(description="The version of the manifest's format.")
    include: list[PathText] | None = Field(
        None, description="Files, relative to this one, whose entries are used as if they stood here."
    )
    defaults: DefaultsFields | None = Field(None, description="Fields for models that lack them.")
    targets: dict[Name, TargetFields] | None = Field(None, description="What engines are built for, by name.")
    profiles: dict[Name, dict[Identifier, ShapeFields]] | None = Field(
        None, description="Optimization profiles by name: each input's shapes."
    )
    models: dict[Name, ModelFields] | None = Field(None, description="The models by name.")
