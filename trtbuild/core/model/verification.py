"""The points and tolerances of a verification, as pure values.

Rules
1. The points are min, opt and max of every profile, and random sizes within it. Each dim is chosen independently, as a
   multiple of its `multiple_of`. Everything follows from the seed, so every point is reproducible.
2. In half of the random points, a quarter of the input values are exactly zero. Some operators have special cases at zero
   (``atan2``), and random values almost never are zero.
3. The error of an output a is max|a-b| / max|b|, where b is PyTorch's result. Integers and bools must be equal, unless
   rounding decides them (`trtbuild.stages.verify.rounding`).
4. The tolerance of an output follows from the coarsest floating type among the values that it is computed from, with inputs
   and weights (`trtbuild.stages.verify.precisions`). The manifest's `precision` is one source of such values; another is a
   module with float16 weights.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trtbuild.core.model.shapes import ShapePlan, symbol_values
from trtbuild.core.model.spec import Model, Precision

#: The library that runs the partitions: onnxruntime on the CPU, or TensorRT (`engine`) on a GPU.
Runner = Literal["onnxruntime", "engine"]

#: The largest allowed error, by runner and by the type that an output was computed in.
#:
#: float32: onnxruntime and PyTorch differ only in the order of sums. On a GPU, TF32 keeps 11 bits of each factor of a
#: product. Rounding loses up to 2**-11 of a factor and truncation up to 2**-10, so a product loses up to 2**-9. On an H200,
#: the errors of 3 of 14 models were between 1e-3 and 1.2e-3. float16 has 11 bits everywhere. bfloat16 has 8 bits: its steps
#: are eight times those of float16, and so is its tolerance.
TOLERANCES: Mapping[Runner, Mapping[Precision, float]] = {
    "onnxruntime": {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2},
    "engine": {"float32": 2e-3, "float16": 1e-2, "bfloat16": 8e-2},
}

#: Floating types from the finest to the coarsest.
COARSENESS: tuple[Precision, ...] = ("float32", "float16", "bfloat16")

#: The defaults for the number of random points of each profile, and for the seed.
RANDOM_POINTS = 2
SEED = 0


@dataclass(frozen=True)
class Point:
    """The sizes of the symbols for one comparison of the partitions, and the seed of the inputs' values.

    `profile` is the number of the profile. `which` is min, opt, max, or ``random 1`` and so on. With `zeros`, a quarter of
    the inputs' values is zero.
    """

    profile: int
    which: str
    sizes: tuple[int, ...]
    seed: int
    zeros: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Point:
        return cls(**{**data, "sizes": tuple(data["sizes"])})


def points(model: Model, shapes: ShapePlan, *, count: int = RANDOM_POINTS, seed: int = SEED) -> tuple[Point, ...]:
    """The points of every profile, in their order, with `count` random ones each."""
    found: list[Point] = []
    for number, profile in enumerate(model.profiles):
        ends = {which: symbol_values(shapes, profile, which) for which in ("min", "opt", "max")}
        fixed: dict[tuple[int, ...], str] = {}
        for which, sizes in ends.items():
            fixed.setdefault(sizes, which)
        found += [Point(number, which, sizes, _seed(seed, number, which)) for sizes, which in fixed.items()]
        for k in range(1, count + 1):
            choose = random.Random(f"{seed}/{number}/sizes/{k}")
            sizes = tuple(
                symbol.multiple_of * choose.randint(low // symbol.multiple_of, high // symbol.multiple_of)
                for symbol, low, high in zip(shapes.symbols, ends["min"], ends["max"], strict=True)
            )
            which = f"random {k}"
            found.append(Point(number, which, sizes, _seed(seed, number, which), zeros=k % 2 == 0))
    return tuple(found)


def _seed(seed: int, profile: int, which: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{profile}/{which}".encode()).digest()[:6], "big")


def tolerances(runner: Runner, own: float | None = None) -> dict[Precision, float]:
    """The largest allowed error, by the type that an output was computed in. `own`, from the user, replaces all of them."""
    return {precision: known if own is None else own for precision, known in TOLERANCES[runner].items()}


def coarsest(precisions: Iterable[Precision]) -> Precision:
    """The coarsest of `precisions`; float32 if there are no precisions."""
    return COARSENESS[max(map(COARSENESS.index, precisions), default=0)]


def tolerance_of(entry: Mapping[str, Any], cut: Mapping[str, Any]) -> float:
    """The tolerance of an entry. Documents of older versions have only one tolerance, for all entries of a cut."""
    return float(entry.get("tolerance", cut["tolerance"]))


def relative_to_tolerance(error: float, tolerance: float) -> float:
    """The error divided by the tolerance; more than 1 is wrong."""
    return error / tolerance if tolerance else math.inf if error else 0.0


def worst(cut: Mapping[str, Any]) -> tuple[float, float]:
    """The error that is largest relative to its tolerance, and that tolerance, among the partitions and the whole model.

    The error is 0.0 if no entry has a number."""
    found = [
        (entry["error"], tolerance_of(entry, cut))
        for entry in (*cut.get("partitions", ()), *([cut["whole"]] if cut.get("whole") else ()))
        if entry.get("error") is not None
    ]
    return max(found, key=lambda pair: (relative_to_tolerance(*pair), pair[0]), default=(0.0, float(cut["tolerance"])))


# -- messages


def error_text(entry: Mapping[str, Any], tolerance: float) -> str:
    """The message about a wrong entry: ``is wrong: 3.1e-01 away (1e-05 is allowed) at profile rows, min (batch = 1)``."""
    far = entry["text"] or f"{entry['error']:.1e} away"
    return f"is wrong: {far} ({tolerance:.0e} is allowed){_point(entry['worst'])}"


def _point(worst: Mapping[str, Any] | None) -> str:
    if worst is None:
        return ""
    dims = ", ".join(f"{name} = {size}" for name, size in worst["dims"].items())
    return f" at profile {worst['profile']}, {worst['which']}{f' ({dims})' if dims else ''}"


#: TF32 may explain an engine's error of less than this many times the tolerance. The tolerance allows for the bits that
#: TF32 drops, but in some models sums make the error larger.
TF32_TIMES = 5

_TF32 = (
    "TF32, which keeps 11 bits of the factors of products on a GPU: `builder: {tf32: false}` builds without it, "
    "`--tolerance X` allows more"
)


def tf32_hint(entry: Mapping[str, Any], tolerance: float, tf32: bool | None) -> str | None:
    """The hint for a float32 engine whose conversion is right, if TF32 alone may explain its error; otherwise None.

    `tf32` is whether the engine was built with TF32, or None if that is not known."""
    if (
        entry["status"] != "wrong"
        or entry["error"] is None
        or entry["error"] >= TF32_TIMES * tolerance
        or tf32 is False
    ):
        return None
    return f"{'' if tf32 else 'unless it was built without it, '}so small an error may come from {_TF32}"


def advice(entry: Mapping[str, Any]) -> list[str]:
    """The place where an entry becomes wrong, and its hint, as lines below `error_text`."""
    return [*_where(entry), *([entry["hint"]] if entry.get("hint") else [])]


def _where(entry: Mapping[str, Any]) -> list[str]:
    """The first operator with a wrong result, and the part of the graph that may contain the fault."""
    place = entry.get("place")
    if place is None:
        return []
    first, since = place["first"], place["since"]
    far = place["text"] or f"{place['error']:.1e} away"
    nodes = first["nodes"]
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    lines = [f"first wrong: {_operator(first)}, {far} (ONNX nodes {shown or 'none'})"]
    if since != first:
        lines.append(f"the fault is between {_operator(since)} and there: the values between cannot be compared")
    return lines


def _operator(found: Mapping[str, Any]) -> str:
    return f"{found['operator']} in {found['module'] or 'the model itself'}"


def failures(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The wrong entries of a report: partitions, the whole model, and the lowered program in PyTorch."""
    yield from (entry for entry in report["partitions"] if entry["status"] == "wrong")
    yield from (report[name] for name in ("whole", "lowered") if report[name]["status"] == "wrong")
