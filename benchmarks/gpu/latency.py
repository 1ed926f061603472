"""Latency for the caller: the package, eager PyTorch and torch.compile side by side, at min, opt and max of every
profile.

Eager and torch.compile have TF32 as TensorRT has it, and float16 where the package computes in float16. torch.compile
compiles each shape for itself (``dynamic=False``), which is the fastest that it has. A number is one call and a wait
for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.figure import Ratio, Row, Value
from benchmarks.gpu.cases import Case, cases
from benchmarks.gpu.host import Host
from benchmarks.gpu.timing import Latency, latency

#: The models that are timed.
MODELS = ("class_token", "class_token_half", "detector", "detector_half", "any_image", "bert", "vit", "three_parts")


def rows(host: Host) -> Iterator[Row]:
    """A row for each model and shape: the package against each of the others."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    for case in cases(host.examples):
        if case.name in MODELS and case.package.exists():
            yield from compared(case, host)


def compared(case: Case, host: Host) -> Iterator[Row]:
    """One model at min, opt and max of each profile."""
    import torch

    import trtbuild

    eager = case.eager(host.device)
    if case.model.precision != "float32":
        eager = eager.to(getattr(torch, case.model.precision))
    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False)
    package = trtbuild.load(case.package, device=host.device).module()
    for point in case.points(0):
        args, kwargs = case.inputs(point, host.device)
        candidates = _candidates(case, package, eager, compiled, args, kwargs)
        with torch.inference_mode():
            found = latency(candidates, host.synchronize, host.repeats)
        ours = found["package"]
        for other in ("eager", "torch.compile"):
            if other in found:
                yield Ratio(
                    f"{case.name} {case.describe(point)} vs {other}",
                    _value("package", ours),
                    _value(other, found[other]),
                    note=f"p95 {ours.p95_us:.0f} and {found[other].p95_us:.0f} µs",
                )


def _candidates(
    case: Case, package: Any, eager: Any, compiled: Any, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    import torch

    dtype = getattr(torch, case.model.precision)

    def as_eager(value: Any) -> Any:
        return value.to(dtype) if value.is_floating_point() else value

    theirs = [as_eager(value) for value in args]
    named = {name: as_eager(value) for name, value in kwargs.items()}
    found: dict[str, Callable[[], object]] = {
        "package": lambda: package(*args, **kwargs),
        "eager": lambda: eager(*theirs, **named),
    }
    try:
        with torch.inference_mode():
            compiled(*theirs, **named)
        found["torch.compile"] = lambda: compiled(*theirs, **named)
    except Exception as error:  # a host without a C compiler: torch.compile is left out, with a message
        print(f"    torch.compile of {case.name}: {type(error).__name__}: {str(error)[:200]}")
    return found


def _value(name: str, found: Latency) -> Value:
    return Value(name, round(found.p50_us, 1), "µs")
