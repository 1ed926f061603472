"""Where a verification looks, and how near is near enough: pure values.

Rules
1. The points are min, opt and max of every profile, and random sizes within it: each dim on its own, in multiples of what
   it is a multiple of. Everything follows from the seed, so a point can be had again.
2. Half of the random points have inputs a quarter of which is exactly zero: some operators are special there
   (``atan2``), and what is random never is.
3. The error of an output is max|a-b| / max|b|, b being what PyTorch computes. Integers and bools are equal or wrong.
4. How large it may be follows from what the output was computed in: the coarsest floating type among the values that it
   comes from, inputs and weights included (`trtbuild.stages.verify.precisions`). The manifest's `precision` is one way
   to get such values; a module that holds halves is another.
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

#: What partitions are run by: onnxruntime on the CPU, or TensorRT on a GPU.
Runner = Literal["onnxruntime", "engine"]

#: The largest error, by runner and what an output was computed in.
#:
#: float32 by onnxruntime differs from PyTorch in the order of sums alone. On a GPU TF32 keeps 11 bits of the factors of
#: products: 2**-11 of each is lost where they are rounded, 2**-10 where the rest is cut off, so 2**-9 of a product (on an
#: H200, 3 of 14 models were between 1e-3 and 1.2e-3). float16 has 11 bits everywhere. bfloat16 has 8: eight times the
#: step of float16, eight times its tolerance.
TOLERANCES: Mapping[Runner, Mapping[Precision, float]] = {
    "onnxruntime": {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2},
    "engine": {"float32": 2e-3, "float16": 1e-2, "bfloat16": 8e-2},
}

#: Floating types from the finest to the coarsest.
COARSENESS: tuple[Precision, ...] = ("float32", "float16", "bfloat16")

#: How many random points each profile gets, and what they follow from, unless a user says otherwise.
RANDOM_POINTS = 2
SEED = 0


@dataclass(frozen=True)
class Point:
    """Sizes of the symbols at which partitions are compared, and the seed of the inputs' values.

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
    """The largest error that counts as equal, by what an output was computed in; `own` is a user's, in place of all."""
    return {precision: known if own is None else own for precision, known in TOLERANCES[runner].items()}


def coarsest(precisions: Iterable[Precision]) -> Precision:
    """The coarsest of some precisions; float32 of none."""
    return COARSENESS[max(map(COARSENESS.index, precisions), default=0)]


def allowed(entry: Mapping[str, Any], cut: Mapping[str, Any]) -> float:
    """The tolerance of an entry. Documents from before entries had one say that of all of them."""
    return float(entry.get("tolerance", cut["tolerance"]))


def share(error: float, tolerance: float) -> float:
    """How much of a tolerance an error takes: more than 1 is wrong."""
    return error / tolerance if tolerance else math.inf if error else 0.0


def worst(cut: Mapping[str, Any]) -> tuple[float, float]:
    """The error, of partitions and the whole, that takes most of its tolerance; and that tolerance. 0.0 where no entry
    has a number."""
    found = [
        (entry["error"], allowed(entry, cut))
        for entry in (*cut.get("partitions", ()), *([cut["whole"]] if cut.get("whole") else ()))
        if entry.get("error") is not None
    ]
    return max(found, key=lambda pair: (share(*pair), pair[0]), default=(0.0, float(cut["tolerance"])))


# -- in words


def how_wrong(entry: Mapping[str, Any], tolerance: float) -> str:
    """``is 3.1e-01 away (1e-05 is allowed) at profile rows, min (batch = 1)``."""
    far = entry["text"] or f"{entry['error']:.1e} away"
    return f"is wrong: {far} ({tolerance:.0e} is allowed){_point(entry['worst'])}"


def _point(worst: Mapping[str, Any] | None) -> str:
    if worst is None:
        return ""
    dims = ", ".join(f"{name} = {size}" for name, size in worst["dims"].items())
    return f" at profile {worst['profile']}, {worst['which']}{f' ({dims})' if dims else ''}"


#: TF32 explains an engine's error of less than so many times the tolerance: the bits that it leaves out are what the
#: tolerance is for, and sums of some models are less forgiving than most.
TF32_TIMES = 5

_TF32 = (
    "TF32, which keeps 11 bits of the factors of products on a GPU: `builder: {tf32: false}` builds without it, "
    "`--tolerance X` allows more"
)


def tf32_hint(entry: Mapping[str, Any], tolerance: float, tf32: bool | None) -> str | None:
    """What to do about an entry of a float32 engine whose conversion is right, where TF32 may be all that is wrong. `tf32`
    is whether it was built with that, None where that is not known."""
    if (
        entry["status"] != "wrong"
        or entry["error"] is None
        or entry["error"] >= TF32_TIMES * tolerance
        or tf32 is False
    ):
        return None
    return f"{'' if tf32 else 'unless it was built without it, '}so small an error may come from {_TF32}"


def advice(entry: Mapping[str, Any]) -> list[str]:
    """Where an entry goes wrong, and what to do about it: lines for below `how_wrong`."""
    return [*_where(entry), *([entry["hint"]] if entry.get("hint") else [])]


def _where(entry: Mapping[str, Any]) -> list[str]:
    """The first operator that is wrong, and from where on the fault may be."""
    place = entry.get("place")
    if place is None:
        return []
    first, since = place["first"], place["since"]
    far = place["text"] or f"{place['error']:.1e} away"
    nodes = first["nodes"]
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    lines = [f"first wrong: {_operator(first)}, {far} (ONNX nodes {shown or 'none'})"]
    if since != first:
        lines.append(f"the fault lies between {_operator(since)} and there: what is between cannot be compared")
    return lines


def _operator(found: Mapping[str, Any]) -> str:
    return f"{found['operator']} in {found['module'] or 'the model itself'}"


def failures(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The entries of a report that are wrong: partitions, the whole, and the lowered program in PyTorch."""
    yield from (entry for entry in report["partitions"] if entry["status"] == "wrong")
    yield from (report[name] for name in ("whole", "lowered") if report[name]["status"] == "wrong")
