"""The messages of TensorRT 8.6 for rejected calls, as (severity, text). They are in recording.json, too."""

from __future__ import annotations

Shape = tuple[int, ...]
Messages = list[tuple[str, str]]

_API = (
    "3: [executionContext.cpp::{where}] Error Code 3: API Usage Error (Parameter check failed at: "
    "runtime/api/executionContext.cpp::{where}, condition: {condition} )"
)


def _internal(text: str) -> Messages:
    return [("ERROR", f"3: [{text}")]


def _check(where: str, condition: str) -> Messages:
    return [("ERROR", _API.format(where=where, condition=condition))]


EMPTY_PLAN = _internal(
    "runtime.cpp::deserializeCudaEngineEx::96] Error Code 3: Internal Error "
    "(Cannot deserialize with an empty memory buffer.)"
)
INVALID_PLAN: Messages = [
    (
        "ERROR",
        "1: [runtime.cpp::parsePlan::314] Error Code 1: Serialization "
        "(Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.)",
    )
]
TRUNCATED_PLAN: Messages = [
    (
        "ERROR",
        "1: [runtime.cpp::parsePlan::315] Error Code 1: Serialization "
        "(Serialization assertion plan->header.size == blobSize failed.)",
    )
]
NULL_MEMORY = _internal(
    "executionContext.cpp::setDeviceMemory::1182] Error Code 3: Internal Error "
    "(setDeviceMemory: Cannot set memory to nullptr.)"
)
MEMORY_NOT_ALIGNED = _internal(
    "executionContext.cpp::setDeviceMemory::1186] Error Code 3: Internal Error "
    "(setDeviceMemory: memory must be aligned on 512 byte boundary.)"
)
NOT_AN_INPUT = _check(
    "setInputShape::2189", "mEngine.getTensorIOMode(profileObliviousBindingIndex) == TensorIOMode::kINPUT"
)
WRONG_RANK = _check("setInputShape::2193", "engineDims.nbDims == dims.nbDims")
WRONG_SIZE = _check(
    "setInputShape::2198",
    "engineDims.d[i] == dims.d[i]. Static dimension mismatch while setting input shape.",
)
SHAPE_MISSING = _check("resolveSlots::2725", "allInputDimensionsSpecified(routine)")
INPUT_MISSING = _check("enqueueV3::2594", "(mContext.profileObliviousBindings.at(profileObliviousIndex)) != nullptr")
OUTPUT_MISSING = _check(
    "enqueueV3::2600",
    "mContext.profileObliviousBindings.at(profileObliviousIndex) || "
    "getPtrOrNull(mOutputAllocators, profileObliviousIndex)",
)


def out_of_range(binding: int, axis: int, shape: Shape, low: Shape, high: Shape) -> Messages:
    """Return the message for a shape outside the profile. `binding` counts the tensors of all profiles."""
    size, smallest, largest = shape[axis], low[axis], high[axis]
    line, limit = (2016, "profileMaxDims.d[i] >=") if size > largest else (2017, "profileMinDims.d[i] <=")
    return _check(
        f"validateInputBindings::{line}",
        f"{limit} dimensions.d[i]. Supplied binding dimension [{','.join(map(str, shape))}] for bindings[{binding}] exceed "
        f"min ~ max range at index {axis}, maximum dimension in profile is {largest}, minimum dimension in profile is "
        f"{smallest}, but supplied dimension is {size}.",
    )


def incompatible(first: Shape, second: Shape) -> Messages:
    """Return the message for shapes that do not broadcast in the network's first layer."""
    a, b = next((a, b) for a, b in zip(first, second, strict=True) if a != b and 1 not in (a, b))
    return [
        (
            "ERROR",
            "7: [shapeMachine.cpp::executeContinuation::864] Error Code 7: Internal Error "
            "((Unnamed Layer* 0) [ElementWise]: dimensions not compatible for elementwise. "
            f"Broadcast has incompatible dimensions: {a} != {b} && {a} != 1 && {b} != 1. "
            f"Instruction: CHECK_BROADCAST {a} {b}.)",
        )
    ]


def no_tensor(call: str, name: str) -> Messages:
    """Return the message for a `call` with a tensor name that the engine does not have."""
    return _internal(
        "engine.cpp::getProfileObliviousBindingIndex::1316] Error Code 3: Internal Error "
        f"({call} given invalid tensor name: {name})"
    )
