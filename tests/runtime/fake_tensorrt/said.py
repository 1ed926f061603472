"""What TensorRT 8.6 says where it refuses, as (severity, text): as recording.json has it."""

from __future__ import annotations

Said = list[tuple[str, str]]

_API = (
    "3: [executionContext.cpp::{where}] Error Code 3: API Usage Error (Parameter check failed at: "
    "runtime/api/executionContext.cpp::{where}, condition: {condition} )"
)


def _internal(text: str) -> Said:
    return [("ERROR", f"3: [{text}")]


def _check(where: str, condition: str) -> Said:
    return [("ERROR", _API.format(where=where, condition=condition))]


EMPTY_PLAN = _internal(
    "runtime.cpp::deserializeCudaEngineEx::96] Error Code 3: Internal Error "
    "(Cannot deserialize with an empty memory buffer.)"
)
NO_PLAN: Said = [
    (
        "ERROR",
        "1: [runtime.cpp::parsePlan::314] Error Code 1: Serialization "
        "(Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.)",
    )
]
CUT_PLAN: Said = [
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
SHAPE_MISSING = _check("resolveSlots::2725", "allInputDimensionsSpecified(routine)") * 2
INPUT_MISSING = _check("enqueueV3::2594", "(mContext.profileObliviousBindings.at(profileObliviousIndex)) != nullptr")
OUTPUT_MISSING = _check(
    "enqueueV3::2600",
    "mContext.profileObliviousBindings.at(profileObliviousIndex) || "
    "getPtrOrNull(mOutputAllocators, profileObliviousIndex)",
)
#: Assumed.
SHAPES_DO_NOT_GO: Said = [("ERROR", "shapes do not go together")]
OUT_OF_RANGE: Said = [("ERROR", "a shape is out of the range of the profile")]


def no_tensor(call: str, name: str) -> Said:
    """`call` names a tensor that is not there."""
    return _internal(
        "engine.cpp::getProfileObliviousBindingIndex::1316] Error Code 3: Internal Error "
        f"({call} given invalid tensor name: {name})"
    )
