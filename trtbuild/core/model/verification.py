"""The points and tolerances of a verification, as pure values.

A verification compares a model with a reference at several points. A point is one size for each dynamic dimension, with
random input values.

Rules
1. The points are min, opt and max of every profile, and random sizes within each profile. The random sizes of two dims are
   independent. All sizes are multiples of `multiple_of`. Everything follows from the seed, so every point is reproducible.
2. In every second random point, about a quarter of the floating-point input values are exactly zero, except in inputs
   whose declared range excludes zero. Some operators have special cases at zero (``atan2``), and random values are almost
   never zero.
3. The error of an output `a` is max|a-b| / max|b|, where `b` is the result of the reference: PyTorch, or onnxruntime for
   an ONNX source. Integers and bools must be equal, unless rounding decides them (`trtbuild.stages.verify.rounding`).
4. The tolerance of an output follows from the coarsest type among the values from which the output is computed
   (`trtbuild.stages.verify.precisions`). If a model amplifies errors, a larger error is allowed (`rounding`, rule 3).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from trtbuild.core.model.shapes import ShapePlan, profile_sizes
from trtbuild.core.model.spec import Model, Precision

#: The library that runs the partitions: onnxruntime on the CPU, or TensorRT (`engine`) on a GPU.
Runner = Literal["onnxruntime", "engine"]

#: The types that values are rounded to: floating types, and the types of quantizers.
RoundedType = Precision | Literal["int8", "float8e4m3fn", "float8e5m2", "float4e2m1", "int4"]

#: The largest allowed error, by runner and by the type in which an output was computed.
#:
#: float32: onnxruntime and PyTorch differ only in the order of sums. On a GPU, TF32 keeps 11 bits of each factor of a
#: product. Rounding loses up to 2**-11 of a factor and truncation up to 2**-10, so a product loses up to 2**-9. On an H200,
#: the errors of 3 of 14 models were between 1e-3 and 1.2e-3.
#:
#: bfloat16: a float16 value has 11 significant bits, and a bfloat16 value has 8. So the steps between bfloat16 numbers are
#: eight times those of float16, and the tolerance is, too.
#:
#: Quantizers: the reference and the runner may round a value that lies between two steps to different steps. At worst, the
#: two roundings are independent. The table has three standard deviations of the difference of two roundings of normally
#: distributed values. The derivation is in docs/quantization.md, and a test computes these numbers. For engines, the
#: tolerances of int8 and float8 are doubled, like those of float16 and bfloat16, but not above 0.4. Those of 4-bit types
#: are not doubled, because errors of 0.8 and 1.0 (almost the whole value) would then be allowed.
TOLERANCES: Mapping[Runner, Mapping[RoundedType, float]] = {
    "onnxruntime": {
        "float32": 1e-5,
        "float16": 5e-3,
        "bfloat16": 4e-2,
        "int8": 4e-2,
        "float8e4m3fn": 1.1e-1,
        "float8e5m2": 2.2e-1,
        "float4e2m1": 4e-1,
        "int4": 5e-1,
    },
    "engine": {
        "float32": 2e-3,
        "float16": 1e-2,
        "bfloat16": 8e-2,
        "int8": 8e-2,
        "float8e4m3fn": 2.2e-1,
        "float8e5m2": 4e-1,
        "float4e2m1": 4e-1,
        "int4": 5e-1,
    },
}

#: All types, from the finest to the coarsest.
TYPES_BY_COARSENESS: tuple[RoundedType, ...] = tuple(TOLERANCES["onnxruntime"])
#: The types of quantizers.
QUANTIZER_TYPES = tuple(type_ for type_ in TYPES_BY_COARSENESS if type_ not in get_args(Precision))

#: The number of random points of each profile.
DEFAULT_RANDOM_POINTS = 2
DEFAULT_SEED = 0


@dataclass(frozen=True)
class Point:
    """The sizes of the symbols for one comparison, and the seed of the inputs' values.

    `profile` is the number of the profile. `which` names the point in it: ``min``, ``opt``, ``max`` or ``random 1``, …
    `zeros`: whether some of the inputs' values are zero (rule 2).
    """

    profile: int
    which: str
    sizes: tuple[int, ...]
    seed: int
    zeros: bool = False


def points_of_model(
    model: Model, shapes: ShapePlan, *, count: int = DEFAULT_RANDOM_POINTS, seed: int = DEFAULT_SEED
) -> tuple[Point, ...]:
    """The points of every profile, in the order of the profiles, with `count` random points each."""
    result: list[Point] = []
    for number, profile in enumerate(model.profiles):
        sizes_at = {which: profile_sizes(shapes, profile, which) for which in ("min", "opt", "max")}
        which_by_sizes: dict[tuple[int, ...], str] = {}  # equal sizes are one point
        for which, sizes in sizes_at.items():
            which_by_sizes.setdefault(sizes, which)
        result += [
            Point(number, which, sizes, _seed_of_point(seed, number, which)) for sizes, which in which_by_sizes.items()
        ]
        for k in range(1, count + 1):
            generator = random.Random(f"{seed}/{number}/sizes/{k}")
            sizes = tuple(
                symbol.multiple_of * generator.randint(low // symbol.multiple_of, high // symbol.multiple_of)
                for symbol, low, high in zip(shapes.symbols, sizes_at["min"], sizes_at["max"], strict=True)
            )
            which = f"random {k}"
            result.append(Point(number, which, sizes, _seed_of_point(seed, number, which), zeros=k % 2 == 0))
    return tuple(result)


def _seed_of_point(seed: int, profile: int, which: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{profile}/{which}".encode()).digest()[:6], "big")


def tolerances(runner: Runner, chosen: float | None = None) -> dict[RoundedType, float]:
    """The largest allowed error, by the type in which an output was computed. A user's `chosen` error is for all types."""
    return {precision: default if chosen is None else chosen for precision, default in TOLERANCES[runner].items()}


def coarsest_precision(precisions: Iterable[RoundedType]) -> RoundedType:
    """The coarsest of `precisions`; float32 if there are no precisions."""
    return TYPES_BY_COARSENESS[max(map(TYPES_BY_COARSENESS.index, precisions), default=0)]


def relative_to_tolerance(error: float, tolerance: float) -> float:
    """The error divided by the tolerance. More than 1 means that the value is wrong."""
    if tolerance:
        return error / tolerance
    return math.inf if error else 0.0
