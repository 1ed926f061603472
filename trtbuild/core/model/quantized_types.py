"""The quantized types that each toolchain builds, and the GPUs that have them.

| type | toolchain | first release | first SM | source |
|---|---|---|---|---|
| int8 | both | all | all | measured: TensorRT-RTX 1.7.1 for SM 75 (float16 models) to 120, TensorRT 8.6.0 for SM 90 |
| int4 | tensorrt-rtx | all | 80 | 1.7.1 builds it for SM 80 to 120, and refuses SM 75 (measured) |
| int4 | tensorrt | 10.0 | all | release notes of 10.0: weights of int4 in blocks |
| float8e4m3fn, float8e5m2 | tensorrt-rtx | all | 89 | 1.7.1 builds them for SM 89 and 120, not for 80 and 86 (measured) |
| float8e4m3fn, float8e5m2 | tensorrt | 10.0 | 89 | the earlier releases read ONNX opset 17, which has no float8 |
| float4e2m1 | tensorrt-rtx | all | 100 | "Working with Quantized Types" of TensorRT-RTX; measured: 1.7.1 for SM 120 |
| float4e2m1 | tensorrt | 10.8 | 100 | "Quantization" of Torch-TensorRT: Blackwell or newer, TensorRT 10.8 or newer |
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.core.model.spec import ToolchainName

#: The first release and the first SM (GPU architecture) that have a type.
_FirstReleaseAndSM = tuple[tuple[int, ...], int]

_FLOAT8: Mapping[ToolchainName, _FirstReleaseAndSM] = {"tensorrt-rtx": ((1,), 89), "tensorrt": ((10,), 89)}
#: Type → toolchain → the first release and the first SM. Messages suggest types in this order.
_TYPES: Mapping[str, Mapping[ToolchainName, _FirstReleaseAndSM]] = {
    "int8": {"tensorrt-rtx": ((1,), 0), "tensorrt": ((8,), 0)},
    "float8e4m3fn": _FLOAT8,
    "float8e5m2": _FLOAT8,
    "int4": {"tensorrt-rtx": ((1,), 80), "tensorrt": ((10,), 0)},
    "float4e2m1": {"tensorrt-rtx": ((1,), 100), "tensorrt": ((10, 8), 100)},
}
#: ONNX's names of all types of the table.
QUANTIZED_TYPES = tuple(_TYPES)

#: The last part of the name of a weight that the trace rounds and stores as floats (``linear.weight:rounded``). A number
#: may follow it, so that no two weights have one name.
ROUNDED = "rounded"


def unsupported_reason(type_: str, toolchain: ToolchainName, version: str | None, sm: int) -> str | None:
    """Return the reason why `version` of a toolchain does not build a type for the SM `sm`; None if the type can be built.

    The text continues a sentence about the type: "begins with SM 89, but the target is for SM 86". Without a version, the
    newest release counts. Raises KeyError for a type that is not in the table."""
    first_release, first_sm = _TYPES[type_][toolchain]
    numbers = tuple(int(part) for part in (version or "").split(".") if part.isdigit())
    if numbers and numbers < first_release:
        first = ".".join(map(str, first_release))
        return f"begins with {toolchain} {first}, but the target has {version}"
    if sm < first_sm:
        return f"begins with SM {first_sm}, but the target is for SM {sm}"
    return None


def types_of(toolchain: ToolchainName, version: str | None, sm: int) -> tuple[str, ...]:
    """Return the quantized types that `version` of a toolchain builds for the SM `sm`."""
    return tuple(type_ for type_ in _TYPES if unsupported_reason(type_, toolchain, version, sm) is None)


def is_rounded_weight(name: str) -> bool:
    """Whether `name` is the name of a weight that the trace rounds and stores as floats (`ROUNDED`)."""
    return name.rstrip("0123456789").endswith(f":{ROUNDED}")
