"""Fakes of TensorRT 8.6.1's builder configurations, networks and layers. They store the values that are set.

The members of enumerations have the names of the real bindings (recorded from `tensorrt_bindings` 8.6.1), but not their
numbers. `LayerType` has only some of the members.
"""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any


def _members(name: str, members: str) -> Any:
    return IntEnum(name, members, start=0)


BuilderFlag = _members(
    "BuilderFlag",
    "FP16 INT8 DEBUG GPU_FALLBACK STRICT_TYPES REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE "
    "OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS DIRECT_IO REJECT_EMPTY_ALGORITHMS ENABLE_TACTIC_HEURISTIC "
    "VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME FP8",
)
DataType = _members("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8")
HardwareCompatibilityLevel = _members("HardwareCompatibilityLevel", "NONE AMPERE_PLUS")
TacticSource = _members("TacticSource", "CUBLAS CUBLAS_LT CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS")
ProfilingVerbosity = _members("ProfilingVerbosity", "LAYER_NAMES_ONLY DETAILED NONE DEFAULT VERBOSE")
MemoryPoolType = _members("MemoryPoolType", "WORKSPACE DLA_MANAGED_SRAM DLA_LOCAL_DRAM DLA_GLOBAL_DRAM TACTIC_DRAM")
NetworkDefinitionCreationFlag = _members("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH EXPLICIT_PRECISION")
PreviewFeature = _members(
    "PreviewFeature",
    "FASTER_DYNAMIC_SHAPES_0805 DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805 PROFILE_SHARING_0806",
)
LayerType = _members(
    "LayerType",
    "ACTIVATION CAST CONCATENATION CONSTANT ELEMENTWISE GATHER IDENTITY MATRIX_MULTIPLY "
    "SELECT SHAPE SHUFFLE SLICE SOFTMAX UNARY",
)

MODULE = SimpleNamespace(
    __version__="8.6.1",
    PreviewFeature=PreviewFeature,
    BuilderFlag=BuilderFlag,
    DataType=DataType,
    HardwareCompatibilityLevel=HardwareCompatibilityLevel,
    TacticSource=TacticSource,
    ProfilingVerbosity=ProfilingVerbosity,
    MemoryPoolType=MemoryPoolType,
    NetworkDefinitionCreationFlag=NetworkDefinitionCreationFlag,
    LayerType=LayerType,
)


class FakeConfig:
    """An IBuilderConfig of 8.6, with some of its attributes.

    `flags`, `limits`, `preview`, `profiles` and `sources` store the values that the methods set."""

    # As in the real class, no other attribute can be set.
    __slots__ = (
        "avg_timing_iterations",
        "builder_optimization_level",
        "flags",
        "hardware_compatibility_level",
        "limits",
        "max_aux_streams",
        "preview",
        "profiles",
        "profiling_verbosity",
        "sources",
    )

    def __init__(self) -> None:
        self.builder_optimization_level, self.avg_timing_iterations, self.max_aux_streams = 3, 1, -1
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.flags = {BuilderFlag.TF32}
        self.limits = {MemoryPoolType.WORKSPACE: 1 << 37}
        self.sources = 0b11111  # all five members of TacticSource, one bit for each
        self.preview: set[Any] = set()
        self.profiles: list[Any] = []

    def set_flag(self, flag: Any) -> None:
        self.flags.add(BuilderFlag(flag))

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self.flags

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self.limits[pool] = size

    def get_memory_pool_limit(self, pool: Any) -> int:
        return self.limits[pool]

    def set_tactic_sources(self, sources: int) -> bool:
        self.sources = sources
        return True

    def get_tactic_sources(self) -> int:
        return self.sources

    def set_preview_feature(self, feature: Any, on: bool) -> None:
        (self.preview.add if on else self.preview.discard)(feature)

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class FakeBuilder:
    """An IBuilder with one `config`."""

    def __init__(self) -> None:
        self.config = FakeConfig()

    def create_builder_config(self) -> FakeConfig:
        return self.config

    def create_optimization_profile(self) -> Any:
        shapes: dict[str, Any] = {}
        return SimpleNamespace(
            shapes=shapes, set_shape=lambda name, *shape: shapes.update({name: shape}), get_shape=shapes.__getitem__
        )


class FakeTensor:
    """An ITensor of shape (-1, 8)."""

    def __init__(self, name: str, dtype: Any = DataType.FLOAT, *, is_shape_tensor: bool = False) -> None:
        self.name, self.dtype, self.is_shape_tensor, self.shape = name, dtype, is_shape_tensor, (-1, 8)


class FakeLayer:
    """An ILayer. `types` maps the number of an output to the type that was set."""

    def __init__(self, kind: str, inputs: list[FakeTensor], outputs: list[FakeTensor]) -> None:
        self.type = f"LayerType.{LayerType[kind].name}"  # trtbuild reads only the text of the type
        self.inputs, self.outputs = inputs, outputs
        self.precision: Any = None
        self.types: dict[int, Any] = {}

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))

    def get_input(self, index: int) -> FakeTensor:
        return self.inputs[index]

    def get_output(self, index: int) -> FakeTensor:
        return self.outputs[index]

    def set_output_type(self, index: int, dtype: Any) -> None:
        self.types[index] = dtype


class FakeNetwork:
    """An INetworkDefinition with `inputs` and `layers`."""

    def __init__(self, inputs: list[FakeTensor], layers: list[FakeLayer] | None = None) -> None:
        self.inputs, self.layers = inputs, layers or []

    num_inputs = property(lambda self: len(self.inputs))
    num_layers = property(lambda self: len(self.layers))

    def get_input(self, index: int) -> FakeTensor:
        return self.inputs[index]

    def get_layer(self, index: int) -> FakeLayer:
        return self.layers[index]
