"""The fields of a manifest as pydantic models: types, ranges and defaults.

`input_fields`, `source_fields` and `builder_fields` have more fields. Rules about several entries or about files are in the
modules of the folder above. Editors and docs/manifest.md show the docstrings and descriptions of the fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model, model_validator

from trtbuild.core.model.spec import PartitionSettings
from trtbuild.manifest.format import kinds, precision_forms
from trtbuild.manifest.format.base import Fields, shorthand
from trtbuild.manifest.format.builder_fields import builder_fields
from trtbuild.manifest.format.input_fields import DimFields, InputFields, ShapeFields
from trtbuild.manifest.format.kinds import Allowed, Identifier, Name, PathText, invalid_value
from trtbuild.manifest.format.source_fields import SourceFields

_PARTITION = PartitionSettings()


class TargetFields(Fields):
    """A GPU architecture and the toolchain that builds engines for it."""

    sm: kinds.Sm = Field(description="Ten times the compute capability of the GPU: 89 is SM 8.9 (Ada).", examples=[89])
    toolchain: kinds.Toolchain | None = Field(
        None,
        description="The TensorRT product that compiles. Takes precedence over the `toolchain` of model and defaults.",
        json_schema_extra={"default": "tensorrt-rtx"},
    )
    version: kinds.Version | None = Field(None, description="The required version of the toolchain, in quotes.")
    compatibility: kinds.Compatibility = Field(
        "exact",
        description="The GPUs for which the engine is built. `exact`: GPUs like the one of the build. "
        "`same_compute_capability`: all GPUs of this SM. `ampere_plus`: Ampere and newer. TensorRT-RTX treats the first "
        "two alike: its engines run on all GPUs of this SM.",
    )
    platform: kinds.Platform | None = Field(
        None, description="`<os>-<cpu>` of the machine that runs the engine. The default is this machine."
    )


class PrecisionFields(Fields):
    """The floating-point type of a model, and other types for some of its modules. `precision: float16` is short for
    `precision: {default: float16}`. [Precision](precision.md) has the rules."""

    model_config = ConfigDict(json_schema_extra=shorthand("default"))

    default: kinds.Precision = Field("float32", description="The type of all modules that no list contains.")
    float32: kinds.ModulePatterns = Field([], description="Modules that compute in float32.")
    float16: kinds.ModulePatterns = Field([], description="Modules that compute in float16.")
    bfloat16: kinds.ModulePatterns = Field([], description="Modules that compute in bfloat16.")

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        return precision_forms.expand(value)

    @model_validator(mode="after")
    def _check_effect(self) -> PrecisionFields:
        precision_forms.check_effect(self.default, self.patterns)
        return self

    @property
    def patterns(self) -> dict[kinds.Precision, list[str]]:
        """The patterns of modules by precision."""
        return {"float32": self.float32, "float16": self.float16, "bfloat16": self.bfloat16}


class PartitionFields(Fields):
    """How the lowered graph is divided into engines. All fields except `granularity` have the names of Torch-TensorRT's
    settings."""

    granularity: kinds.Granularity = Field(
        list(_PARTITION.granularity),
        description="`model` for one engine per convertible piece of the model, or module paths: each call of a matching "
        "module is one engine.",
        json_schema_extra={"default": "model"},
    )
    min_block_size: kinds.Count = Field(
        _PARTITION.min_block_size,
        description="The smallest number of operators in an engine, if a model is split. Smaller pieces stay in PyTorch, "
        "except whole modules of `granularity`.",
    )
    torch_executed_ops: kinds.Operators = Field(
        list(_PARTITION.torch_executed_ops), description="Operators that stay in PyTorch.", examples=[["aten.cumsum"]]
    )
    require_full_compilation: bool = Field(
        _PARTITION.require_full_compilation,
        description="Whether it is an error if a part of the model stays in PyTorch.",
    )
    truncate_double: bool = Field(
        _PARTITION.truncate_double,
        description="Whether engines compute float64 values in float32. Otherwise such values stay in PyTorch. Inputs and "
        "outputs keep their types: PyTorch casts them.",
    )


class CalibrationFields(Fields):
    """The calibration data: exactly one of `python` and `safetensors`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["python"]}, {"required": ["safetensors"]}]})

    python: kinds.CallableName | None = Field(
        None,
        description="A callable that yields samples. A sample is the input of one call of the model: a tuple in the order "
        "of the inputs, or a mapping by name.",
        examples=["data.calibration:batches"],
    )
    safetensors: PathText | None = Field(
        None,
        description="A file with one tensor for each input, relative to this file. The first axis counts the samples.",
        examples=["data/calibration.safetensors"],
    )
    kwargs: dict[str, Any] | None = Field(
        None, description="Keyword arguments of the callable.", examples=[{"split": "train"}]
    )
    samples: kinds.Count | None = Field(
        None, description="The number of samples that are used. The default is all samples.", examples=[64]
    )

    @model_validator(mode="after")
    def _check_one_kind(self) -> CalibrationFields:
        if (self.python is None) == (self.safetensors is None):
            raise invalid_value(
                "`python` and `safetensors` cannot be used together" if self.python else "the calibration has no data",
                "write exactly one of python, safetensors",
            )
        if self.kwargs is not None and self.python is None:
            raise invalid_value("`kwargs` are for `python`, and the data is in a file", "remove kwargs")
        return self


class QuantizeFields(Fields):
    """The types that the layers of a model are rounded to, and the method that finds the scales."""

    format: kinds.QuantizationFormat = Field(
        description="The type that weights are rounded to. `int8` and `fp8` also round activations, to the same type."
    )
    method: kinds.QuantizationMethod = Field(
        "max", description="How the scales are found. Each format allows some of these methods."
    )
    calibration: CalibrationFields | None = Field(
        None,
        description="The data with which scales are found. With `max`, formats that round only weights need no data.",
    )
    exclude: kinds.ModulePatterns = Field(
        [],
        description="Module paths that stay in float; `*` matches any characters, also dots.",
        examples=[["head", "*.norm*"]],
    )


class PluginFields(Fields):
    """A TensorRT plugin, by its name in TensorRT's registry. `RoiPlugin` alone is short for `{plugin: RoiPlugin}`."""

    plugin: kinds.PluginName = Field(description="The name of the plugin.", examples=["RoiPlugin"])
    version: kinds.PluginText = Field("1", description="The version of the plugin, in quotes.")
    namespace: kinds.PluginText = Field("", description="The namespace of the plugin.")
    arguments: dict[str, str | None] = Field(
        {},
        description="Argument of the operator → the plugin's field for it, if the names differ. null means that the plugin "
        "has no field for it.",
        examples=[{"pooled_height": "output_height"}],
    )
    attributes: dict[str, Any] = Field(
        {}, description="Fields of the plugin with fixed values.", examples=[{"mode": 1}]
    )


class PluginsFields(Fields):
    """Operators from outside PyTorch that become TensorRT plugins inside engines."""

    library: PathText | None = Field(
        None,
        description="The shared library with the plugins, relative to this file. It is left out for plugins that "
        "TensorRT's own library has.",
        examples=["plugins/libroi.so"],
    )
    operators: dict[str, kinds.PluginName | PluginFields] = Field(
        description="The plugin of each operator, by the name of the operator.", examples=[{"mylib::roi": "RoiPlugin"}]
    )


_BuilderFields: Any = create_model("_BuilderFields", __base__=Fields, **builder_fields())


class BuilderFields(_BuilderFields):  # type: ignore[misc]  # a class that is created at import
    """TensorRT's builder settings, with the names of `IBuilderConfig` and `BuilderFlag`."""


class OutputFields(Fields):
    """The outputs to write, and their paths. Paths are relative to the project."""

    package: PathText | None = Field(None, description="A package directory.", examples=["dist/vit"])
    plans: PathText | None = Field(None, description="A directory of raw plans for trtexec.", examples=["dist/plans"])
    triton: PathText | None = Field(None, description="A Triton model repository, which models may share.")
    pt2: PathText | None = Field(
        None,
        description="A `.pt2` file for `torch.export.load`. If the model has several targets, each has its own file "
        "`<name>.<target>.pt2`.",
        examples=["dist/vit.pt2"],
    )


_NameList = Annotated[list[str], Field(min_length=1), Allowed("a list of names such as [a, b]")]


class DefaultsFields(Fields):
    """Default values of the fields of models."""

    toolchain: kinds.Toolchain = Field(
        "tensorrt-rtx", description="The TensorRT product that compiles, for targets without a `toolchain`."
    )
    weights: PathText | None = Field(
        None,
        description="A weights file, relative to this file. It has all weights of the module, and no others. One name of a "
        "tied weight is enough.",
        examples=["weights/vit.safetensors"],
    )
    inputs: dict[Identifier, InputFields | None] | None = Field(
        None,
        description="The tensors that the model takes. Positional inputs are listed in the order of the arguments.",
    )
    dims: dict[Identifier, DimFields] | None = Field(None, description="Named dimensions and their relations.")
    profiles: _NameList = Field(
        [], description="The names of the model's profiles. Each engine has all of them, in this order."
    )
    targets: _NameList = Field([], description="The names of the targets that the model is built for.")
    precision: PrecisionFields = Field(
        PrecisionFields.model_validate("float32"),
        description="The floating-point type in which the model computes, or one type for each list of modules.",
        json_schema_extra={"default": "float32"},
    )
    quantize: QuantizeFields | None = Field(None, description="The types that the layers of the model are rounded to.")
    state: kinds.BufferPatterns = Field(
        [],
        description="Buffers that a call reads and writes; `*` matches any characters, also dots.",
        examples=[["cache.*"]],
    )
    plugins: PluginsFields | None = Field(
        None, description="Operators from outside PyTorch that become TensorRT plugins inside engines."
    )
    reference: bool = Field(
        False,
        description="Whether the package has all programs and weights, so that it also runs on a CPU, without engines.",
    )
    partition: PartitionFields | None = Field(None, description="How the graph is divided into engines.")
    builder: BuilderFields | None = Field(None, description="TensorRT's builder settings.")
    outputs: OutputFields | None = Field(
        None, description="The outputs to write, and their paths. The default is `{package: dist/<model>}`."
    )


class ModelFields(DefaultsFields):
    """A model: its source, its inputs, and the engines and outputs to build."""

    # `resolve` checks that `source` exists. If pydantic required it, a model without `source` would give no `ModelFields`,
    # and its other fields could not be checked.
    model_config = ConfigDict(json_schema_extra={"required": ["source"]})

    source: SourceFields | None = Field(None, description="Where the model comes from.")


class ManifestFields(Fields):
    """A manifest of trtbuild."""

    version: Literal[1] = Field(description="The version of the manifest's format.")
    include: list[PathText] | None = Field(
        None, description="Files whose entries are added to those of this file. The paths are relative to this file."
    )
    defaults: DefaultsFields | None = Field(None, description="Default values of the fields of models.")
    targets: dict[Name, TargetFields] | None = Field(None, description="The GPU architectures to build for, by name.")
    profiles: dict[Name, dict[Identifier, ShapeFields]] | None = Field(
        None, description="Optimization profiles by name: each input's shapes."
    )
    models: dict[Name, ModelFields] | None = Field(None, description="The models by name.")
