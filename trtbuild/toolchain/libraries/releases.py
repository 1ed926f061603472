"""The differences between releases of a toolchain: types, ONNX opsets, networks, policies, and refused operators.
`trtbuild.core.model.builder_settings` has the first release with each builder setting.

Rules
1. Each row of `_RELEASES` begins with the first release for which it is valid. The newest row is first. The
   oldest row is also used for older releases.
2. The values come from runs (8.6.0 on an H200, TensorRT-RTX 1.7.1) or from NVIDIA's documentation, which is cited. If
   the documentation does not name the minor version, the earliest is assumed.
   `trtbuild.toolchain.compiling.configuration` checks the library itself before it uses a setting.
3. An operator or a type is refused if it is doubtful whether a release supports it. The nodes with this operator or type
   stay in PyTorch, which computes them correctly.
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
    #: Element types (torch's names) in which engines compute. A partition has no other types.
    dtypes: tuple[str, ...]
    #: `NetworkDefinitionCreationFlag`s for new networks.
    network_flags: tuple[str, ...] = ("STRONGLY_TYPED",)
    #: `OnnxParserFlag`s to set. Without NATIVE_INSTANCENORM, TensorRT before 10 uses a plugin, which needs cuDNN.
    parser_flags: tuple[str, ...] = ()
    #: Whether a network keeps exactly the types of its graph. Otherwise the precision is set for each layer
    #: (`trtbuild.toolchain.tensorrt8.precision`).
    strongly_typed: bool = True
    #: Whether the parser converts a batch normalization, with input and parameters in half precision, to one Scale layer.
    half_norm_is_scale_layer: bool = True
    #: Whether kernel timings are kept for later builds (`trtbuild.toolchain.compiling.timing_cache`).
    keeps_timings: bool = True
    #: Whether int64 values are computed in 32 bits; inputs and outputs are then never int64
    #: (`trtbuild.toolchain.compiling.foreign_types`).
    narrows_int64: bool = False
    #: Compatibility policy → `HardwareCompatibilityLevel`, or None if the library needs no level for the policy.
    compatibilities: Mapping[str, str | None] = field(default_factory=dict)
    #: The `TacticSource`s that a manifest may choose.
    tactic_sources: tuple[str, ...] = ()
    #: ONNX operators that the parser of TensorRT-RTX accepts, but that stay in PyTorch with this release: its parser
    #: refuses them, or support is doubtful (rule 3).
    refuses: tuple[str, ...] = ()


#: TensorRT-RTX. It ignores the hardware compatibility level. A plan is for one or several compute capabilities, and runs on
#: all devices that have one of them. So for ampere_plus, the plan has every SM from 80 on (measured: it is not larger than
#: for one SM). The parser changes float64 to float32 without an error (measured, 1.7.1), and treats int8 values as
#: quantized. Both would change the model, so these types are left out. uint8 is accepted only as the input of a cast. The
#: parser checks this.
#: The opset is torch 2.13's default. In opset 20 Gelu is one operator, which the parser accepts.
_RTX = Release(
    opset=20,
    dtypes=ENGINE_TYPES,
    compatibilities={"exact": None, "same_compute_capability": None, "ampere_plus": None},
)

#: https://docs.nvidia.com/deeplearning/tensorrt: Python API reference 11.0
#: (NetworkDefinitionCreationFlag.STRONGLY_TYPED is ignored, because all networks are strongly typed; precision flags are
#: removed), and Python API reference 10.0 (EXPLICIT_BATCH is ignored; opset 20).
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
#: 8.6, from its Python bindings 8.6.1 (measured): DataType has no BF16 and no INT64, BuilderFlag has no newer flags,
#: and HardwareCompatibilityLevel has NONE and AMPERE_PLUS.
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
    # From OnnxParser.supports_operator of 8.6.0, on an H200, compared with that of TensorRT-RTX 1.7.1.
    refuses=(
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
#: The parser of 8.6.0 (EA) does not have the flag NATIVE_INSTANCENORM. The flag was added in 8.6.1 (GA). If the bindings of
#: 8.6.1 set it with the library 8.6.0, they crash (measured). Without the flag, InstanceNormalization needs a plugin
#: and cuDNN (see `parser_flags`). With 8.6.0 it stays in PyTorch.
_TENSORRT_8_6_0 = replace(_TENSORRT_8, parser_flags=(), refuses=("InstanceNormalization", *_TENSORRT_8.refuses))
#: https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md: 9.0 has int64 and bfloat16. Strong typing: Python API
#: reference of 9.
_TENSORRT_9 = replace(
    _TENSORRT_8,
    dtypes=("float32", "float16", "bfloat16", "int32", "int64", "bool"),
    network_flags=("EXPLICIT_BATCH", "STRONGLY_TYPED"),
    strongly_typed=True,
    narrows_int64=False,
    half_norm_is_scale_layer=False,  # not known for 9; True for the parsers of 10 and of TensorRT-RTX
)

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
    """The properties of `version` of a toolchain."""
    numbers = version_numbers(version)
    for first, properties in _RELEASES[toolchain]:
        if numbers >= first:
            return properties
    return _RELEASES[toolchain][-1][1]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: ``8.6.0`` → (8, 6, 0). Parts that are not numbers are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def oldest_release(toolchain: ToolchainName) -> tuple[int, ...]:
    """The oldest release of a toolchain that trtbuild supports."""
    return {"tensorrt-rtx": (1, 4), "tensorrt": (8, 6)}[toolchain]


def lacks_setting(toolchain: ToolchainName, version: str, setting: Setting) -> bool:
    """Whether `version` of a toolchain does not have a builder setting."""
    since = setting.first_releases.get(toolchain, "0")
    return since is None or version_numbers(f"{version}.0") < version_numbers(since)  # "10" is 10.0


def has_default(settings: BuilderSettings, name: str) -> bool:
    """Whether the setting `name` has its default value. A library without the setting behaves like a library with the
    default value."""
    return bool(getattr(settings, name) == getattr(_DEFAULT, name))


_DEFAULT = BuilderSettings()
