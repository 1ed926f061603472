"""The differences between releases of a toolchain: types, ONNX opsets, flags, compatibilities, and refused operators.

`trtbuild.core.model.builder_settings` has the first release with each builder setting.

Rules
1. Each row of `_RELEASES` begins with the first release for which it is valid. The newest row is first. The
   oldest row is also used for older releases.
2. The values come from runs (8.6.0 on an H200, TensorRT-RTX 1.7.1) or from the documentation that a comment cites. If the
   documentation names only a major version, its first release is assumed.
3. If it is doubtful whether a release supports an operator or a type, the release counts as refusing it. PyTorch then
   computes these nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from trtbuild.core.model.builder_settings import BuilderSettings, Setting
from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.values.element_types import ENGINE_TYPES


@dataclass(frozen=True)
class Release:
    """The properties of one release of a toolchain."""

    #: The ONNX opset of the models for its parser.
    opset: int
    #: The element types (torch's names) in which engines compute. A TensorRT partition has no other types, except the
    #: quantized types between quantizers.
    dtypes: tuple[str, ...]
    #: `NetworkDefinitionCreationFlag`s for new networks.
    network_flags: tuple[str, ...] = ("STRONGLY_TYPED",)
    #: `OnnxParserFlag`s to set. Without NATIVE_INSTANCENORM, the parser of TensorRT before 10 replaces
    #: InstanceNormalization by a plugin that needs cuDNN.
    parser_flags: tuple[str, ...] = ()
    #: Whether a network keeps exactly the types of its graph. If not, `trtbuild.toolchain.tensorrt8.precision` sets the
    #: precision of each layer.
    strongly_typed: bool = True
    #: Whether the parser converts a batch normalization to one Scale layer if its input and parameters have half precision.
    converts_half_norm_to_scale_layer: bool = True
    #: Whether trtbuild keeps kernel timings for later builds (`trtbuild.toolchain.compiling.timing_cache`).
    keeps_timings: bool = True
    #: Whether engines compute int64 values in 32 bits. Inputs and outputs are then never int64
    #: (`trtbuild.toolchain.compiling.foreign_types`).
    narrows_int64: bool = False
    #: Compatibility of a target → `HardwareCompatibilityLevel`, or None if the library needs no level for it.
    compatibilities: Mapping[str, str | None] = field(default_factory=dict)
    #: The `TacticSource`s that a manifest may choose.
    tactic_sources: tuple[str, ...] = ()
    #: The ONNX operators that the parser of TensorRT-RTX accepts and the parser of this release refuses, as far as known
    #: (rule 3).
    refused_operators: tuple[str, ...] = ()


#: The opset is the default of torch 2.13. In this opset Gelu is one operator, which the parser accepts.
#:
#: float64 and int8 are left out of `dtypes`. The parser changes float64 to float32 without an error (measured, 1.7.1), and
#: treats int8 values as quantized. Both would change the model. uint8 is in `dtypes`, but the parser accepts it only as the
#: input of a cast.
#:
#: TensorRT-RTX ignores the hardware compatibility level. A plan is for one or several SMs instead. For ampere_plus, it has
#: every SM from 80 on for which the library builds (measured: the plan is not larger than for one SM).
_RTX = Release(
    opset=20,
    dtypes=ENGINE_TYPES,
    compatibilities={"exact": None, "same_compute_capability": None, "ampere_plus": None},
)

#: Source: https://docs.nvidia.com/deeplearning/tensorrt, the Python API references 11.0 and 10.0. In 11.0
#: NetworkDefinitionCreationFlag.STRONGLY_TYPED is ignored, because all networks are strongly typed. In 10.0 EXPLICIT_BATCH
#: is ignored, and the opset is 20.
_TENSORRT_11 = Release(
    opset=20,
    dtypes=ENGINE_TYPES,
    network_flags=(),
    compatibilities={
        "exact": "NONE",
        "same_compute_capability": "SAME_COMPUTE_CAPABILITY",
        "ampere_plus": "AMPERE_PLUS",
    },
    tactic_sources=("edge_mask_convolutions", "jit_convolutions"),
)
_TENSORRT_10 = replace(
    _TENSORRT_11,
    network_flags=("STRONGLY_TYPED",),
    tactic_sources=("cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"),
)
#: Source: the Python bindings 8.6.1. Their DataType has no BF16 and no INT64, and their HardwareCompatibilityLevel has only
#: NONE and AMPERE_PLUS.
_TENSORRT_8 = Release(
    opset=17,
    dtypes=("float32", "float16", "int32", "bool"),
    network_flags=("EXPLICIT_BATCH",),
    strongly_typed=False,
    narrows_int64=True,
    keeps_timings=False,
    compatibilities={"exact": "NONE", "ampere_plus": "AMPERE_PLUS"},
    tactic_sources=_TENSORRT_10.tactic_sources,
    parser_flags=("NATIVE_INSTANCENORM",),
    # From a comparison of OnnxParser.supports_operator in 8.6.0, on an H200, and in TensorRT-RTX 1.7.1.
    refused_operators=(
        "Attention",
        "BlackmanWindow",
        "CastLike",
        "Gelu",
        "HammingWindow",
        "HannWindow",
        "Hardmax",
        "Mish",
        "NonMaxSuppression",
        "NonZero",
        "RMSNormalization",
        "RoiAlign",
        "RotaryEmbedding",
        "STFT",
        "Swish",
        "TensorScatter",
    ),
)
#: The flag NATIVE_INSTANCENORM was added in 8.6.1. If the bindings set it in the library 8.6.0, they crash (measured).
#: InstanceNormalization counts as refused, because it needs cuDNN without the flag.
_TENSORRT_8_6_0 = replace(
    _TENSORRT_8, parser_flags=(), refused_operators=("InstanceNormalization", *_TENSORRT_8.refused_operators)
)
#: Sources: for int64 and bfloat16, https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md (9.0). For strong
#: typing, the Python API reference of 9.
_TENSORRT_9 = replace(
    _TENSORRT_8,
    dtypes=("float32", "float16", "bfloat16", "int32", "int64", "bool"),
    network_flags=("EXPLICIT_BATCH", "STRONGLY_TYPED"),
    strongly_typed=True,
    narrows_int64=False,
    converts_half_norm_to_scale_layer=False,  # not known for 9; True for the parsers of 10 and of TensorRT-RTX
)

#: Toolchain → rows: (first release of the row, its properties).
_RELEASES: Mapping[ToolchainName, tuple[tuple[tuple[int, ...], Release], ...]] = {
    "tensorrt-rtx": (((1,), _RTX),),
    "tensorrt": (
        ((11,), _TENSORRT_11),
        ((10,), _TENSORRT_10),
        ((9,), _TENSORRT_9),
        ((8, 6, 1), _TENSORRT_8),
        ((8,), _TENSORRT_8_6_0),
    ),
}


@lru_cache(maxsize=64)
def release(toolchain: ToolchainName, version: str) -> Release:
    """Return the properties of `version` of a toolchain (rule 1)."""
    numbers = version_numbers(version)
    for first, properties in _RELEASES[toolchain]:
        if numbers >= first:
            return properties
    return _RELEASES[toolchain][-1][1]


def version_numbers(version: str) -> tuple[int, ...]:
    """``8.6.0.post1`` → (8, 6, 0): parts that are not numbers are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def oldest_release(toolchain: ToolchainName) -> tuple[int, ...]:
    """Return the oldest supported release of a toolchain."""
    return {"tensorrt-rtx": (1, 4), "tensorrt": (8, 6)}[toolchain]


def lacks_setting(toolchain: ToolchainName, version: str, setting: Setting) -> bool:
    """Whether `version` of a toolchain does not have a builder setting."""
    since = setting.first_releases.get(toolchain, "0")
    return since is None or version_numbers(f"{version}.0") < version_numbers(since)  # "10" is 10.0


def has_default(settings: BuilderSettings, name: str) -> bool:
    """Whether the setting `name` has its default value. A library without the setting behaves as with this value."""
    return bool(getattr(settings, name) == getattr(_DEFAULT, name))


_DEFAULT = BuilderSettings()
