"""What the releases of a toolchain differ in: types, networks, settings, policies, and what the parser refuses.

Rules
1. A value stands here with the first release that it holds for, newest first; an older release than the oldest gets that.
2. What is said here was run (8.6.0 on an H200, TensorRT-RTX 1.7.1) or read in NVIDIA's documentation, which is named
   beside it. Where the documentation does not tell the minor version, the earliest is taken: the library itself is asked
   before it is used (`trtbuild.toolchain.compiling.configuration`), and says no as an error, never as an AttributeError.
3. What is in doubt is refused: a piece that an engine does not take stays in PyTorch, and is right there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from trtbuild.core.model.spec import BuilderSettings, ToolchainName


@dataclass(frozen=True)
class Release:
    """One version of a toolchain. Settings are named as in `trtbuild.core.model.spec.BuilderSettings`."""

    #: The ONNX opset that its parser is given.
    opset: int
    #: Element types (torch's names) that engines compute and take as they are. A partition holds no other.
    dtypes: tuple[str, ...]
    #: `NetworkDefinitionCreationFlag`s that a network is created with.
    network_flags: tuple[str, ...] = ("STRONGLY_TYPED",)
    #: `OnnxParserFlag`s that are set. Without NATIVE_INSTANCENORM TensorRT before 10 takes a plugin, and cuDNN with it.
    parser_flags: tuple[str, ...] = ()
    #: Whether the types of a network are those of its graph. Else precision is asked for, layer by layer
    #: (`trtbuild.toolchain.tensorrt8.precision`).
    strongly_typed: bool = True
    #: Whether batch normalization of halves with parameters in half is one Scale layer of halves.
    scales_halves: bool = True
    #: Whether timings of kernels are kept for later builds (`trtbuild.toolchain.compiling.timing_cache`).
    keeps_timings: bool = True
    #: Whether int64 values are computed in 32 bits inside; they are no inputs and outputs then (`element_types`).
    narrows_int64: bool = False
    #: Compatibility policy → `HardwareCompatibilityLevel`; None where the library has none, and needs none.
    compatibilities: Mapping[str, str | None] = field(default_factory=dict)
    #: Builder setting that it lacks → the first release that has it.
    lacks: Mapping[str, str] = field(default_factory=dict)
    #: `TacticSource`s that can be chosen among.
    tactic_sources: tuple[str, ...] = ()
    #: ONNX operators that its parser refuses, and TensorRT-RTX's takes.
    refuses: tuple[str, ...] = ()


_ALL_TYPES = ("float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8")

#: TensorRT-RTX. It ignores the hardware compatibility level: one plan is for all devices of its compute capability, and one
#: plan may hold several, so ampere_plus is a plan for every SM from 80 on (measured: no larger than for one).
#: The parser makes float32 of float64 in silence (measured, 1.7.1), and int8 means quantized: neither is the model.
#: uint8 is taken only to be cast, which the parser sees to. Opset: what torch 2.13 exports by default; 20 has Gelu as one
#: operator: parses.
_RTX = Release(
    opset=20,
    dtypes=_ALL_TYPES,
    compatibilities={"exact": None, "same_compute_capability": None, "ampere_plus": None},
    lacks={"tactic_sources": "no release"},
)

#: https://docs.nvidia.com/deeplearning/tensorrt: Python API reference 11.0 (NetworkDefinitionCreationFlag.STRONGLY_TYPED
#: is ignored, networks always are; precision flags are gone), 10.0 (EXPLICIT_BATCH is ignored; opset 20), migration guide
#: 8.x to 10.x (STRIP_PLAN, WEIGHT_STREAMING, STRICT_NANS, the number of tactics), release notes 10.8 (tiling).
_TENSORRT_11 = Release(
    opset=20,
    dtypes=_ALL_TYPES,
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
_SINCE_10_8 = ("tiling_optimization_level", "l2_limit_for_tiling", "monitor_memory")
_SINCE_10 = (
    "strip_plan", "weight_streaming", "strict_nans", "max_num_tactics", "distributive_independence",
    "require_user_allocation",
)  # fmt: skip
_TENSORRT_10_0 = replace(_TENSORRT_10, lacks=dict.fromkeys(_SINCE_10_8, "10.8"))
#: 8.6, as its Python bindings 8.6.1 list it (measured): DataType has no BF16 and no INT64, BuilderFlag nothing that is
#: newer, HardwareCompatibilityLevel NONE and AMPERE_PLUS.
_TENSORRT_8 = Release(
    opset=17,
    dtypes=("float32", "float16", "int32", "bool"),
    network_flags=("EXPLICIT_BATCH",),
    strongly_typed=False,
    narrows_int64=True,
    keeps_timings=False,
    compatibilities={"exact": "NONE", "ampere_plus": "AMPERE_PLUS"},
    lacks={**dict.fromkeys(_SINCE_10_8, "10.8"), **dict.fromkeys(_SINCE_10, "10.0")},
    tactic_sources=_TENSORRT_10.tactic_sources,
    parser_flags=("NATIVE_INSTANCENORM",),
    # OnnxParser.supports_operator of 8.6.0, on an H200, beside that of TensorRT-RTX 1.7.1.
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
#: The parser of 8.6.0 (EA) has no such flag: it came with 8.6.1 (GA), whose bindings crash when they set one there
#: (measured).
_TENSORRT_8_6_0 = replace(_TENSORRT_8, parser_flags=(), refuses=("InstanceNormalization", *_TENSORRT_8.refuses))
#: https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md: 9.0 has int64 and bfloat16. Strong typing: Python API
#: reference of 9.
_TENSORRT_9 = replace(
    _TENSORRT_8,
    dtypes=("float32", "float16", "bfloat16", "int32", "int64", "bool"),
    network_flags=("EXPLICIT_BATCH", "STRONGLY_TYPED"),
    strongly_typed=True,
    narrows_int64=False,
    scales_halves=False,  # it was not seen to; the parsers of 10 and TensorRT-RTX do
)

_RELEASES: Mapping[ToolchainName, tuple[tuple[tuple[int, ...], Release], ...]] = {
    "tensorrt-rtx": (((1,), _RTX),),
    "tensorrt": (
        ((11,), _TENSORRT_11),
        ((10, 8), _TENSORRT_10),
        ((10,), _TENSORRT_10_0),
        ((9,), _TENSORRT_9),
        ((8, 6, 1), _TENSORRT_8),
        ((8,), _TENSORRT_8_6_0),
    ),
}


@lru_cache(maxsize=64)
def release(toolchain: ToolchainName, version: str) -> Release:
    """What `version` of a toolchain is and takes."""
    numbers = numbers_of(version)
    for first, found in _RELEASES[toolchain]:
        if numbers >= first:
            return found
    return _RELEASES[toolchain][-1][1]


def numbers_of(version: str) -> tuple[int, ...]:
    """``8.6.0`` → (8, 6, 0), as far as its parts are numbers."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def oldest(toolchain: ToolchainName) -> tuple[int, ...]:
    """The oldest release of a toolchain that trtbuild builds with."""
    return {"tensorrt-rtx": (1, 4), "tensorrt": (8, 6)}[toolchain]


def unset(settings: BuilderSettings, name: str) -> bool:
    """Whether a setting is what it is without being said: a library that lacks it does that."""
    return bool(getattr(settings, name) == getattr(_DEFAULT, name))


_DEFAULT = BuilderSettings()
