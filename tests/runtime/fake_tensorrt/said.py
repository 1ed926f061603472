"""What TensorRT 8.6 says and requires where it refuses, as (severity, text).

Assumed: no recording of a real one was made yet (answers.json says by whom its answers are). `python -m
benchmarks.gpu_record --check tests/runtime/fake_tensorrt/answers.json` on a GPU host says what differs.
"""

from __future__ import annotations

Shape = tuple[int, ...]
Said = list[tuple[str, str]]

#: Activation memory of the samples, in bytes.
MEMORY_BYTES: dict[str, int] = {"wide": 1 << 20}
NULL_OUTPUT_REFUSED = False
NO_SHAPE: Shape = (-1,)
MAX_OUTPUT_BYTES = 64
PROFILE_REFUSED = "Error in set optimization profile async."
INFERENCE_FAILED = "Shape inference failed"

EMPTY_PLAN: Said = [("ERROR", "empty")]
CUT_PLAN: Said = [("ERROR", "cut")]
NO_PLAN: Said = [("ERROR", "no plan")]
SHAPES_DO_NOT_GO: Said = [("ERROR", "shapes do not go together")]


def no_such_profile(profile: int, count: int) -> Said:
    return [("ERROR", f"no profile {profile} of {count}")]


def profile_in_use(profile: int) -> Said:
    return [("ERROR", f"profile {profile} is in use")]


def not_an_input(name: str, exists: bool) -> Said:
    return [("ERROR", f"{name} is not an input")]


def wrong_rank(name: str, shape: Shape, declared: Shape) -> Said:
    return [("ERROR", f"{name} has another rank")]


def wrong_size(name: str, axis: int, shape: Shape, declared: Shape) -> Said:
    return [("ERROR", f"axis {axis} of {name}")]


def out_of_range(name: str, axis: int, shape: Shape, low: Shape, high: Shape, profile: int) -> Said:
    return [("ERROR", f"{name} is out of range of profile {profile}")]


def no_tensor(name: str) -> Said:
    return [("ERROR", f"no tensor {name}")]


def no_tensor_address(name: str) -> Said:
    return [("ERROR", f"no tensor {name}")]


def null_address(name: str) -> Said:
    return [("ERROR", f"{name} is null")]


def shape_missing(name: str) -> Said:
    return [("ERROR", f"no shape of {name}")]


def address_missing(name: str) -> Said:
    return [("ERROR", f"no address of {name}")]
