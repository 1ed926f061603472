"""Compare the latencies of packages, eager PyTorch and torch.compile, at min, opt and max of every profile.

Eager and torch.compile use TF32, as TensorRT does. For a float16 package, the whole PyTorch module uses float16.
torch.compile compiles each shape separately (``dynamic=False``), which is its fastest mode. The latency includes the wait
for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.figure import Ratio, Row, Value
from benchmarks.gpu.cases import Case, cases
from benchmarks.gpu.host import Host
from benchmarks.gpu.timing import Latency, latencies

#: The models that are timed.
MODELS = ("class_token", "class_token_half", "detector", "detector_half", "any_image", "bert", "vit", "three_parts")


def rows(host: Host) -> Iterator[Row]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    for case in cases(host.examples):
        if case.name in MODELS and case.package.exists():
            yield from compare_latency(case, host)


def compare_latency(case: Case, host: Host) -> Iterator[Row]:
    """Compare the latencies of one model."""
    import torch

    import trtbuild

    eager = case.eager(host.device)
    if case.model.precision != "float32":
        eager = eager.to(getattr(torch, case.model.precision))
    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False)
    package = trtbuild.load(case.package, device=host.device).module()
    for point in case.points(count=0):
        args, kwargs = case.inputs(point, host.device)
        candidates = _candidates(case, package, eager, compiled, args, kwargs)
        with torch.inference_mode():
            times = latencies(candidates, host.synchronize, host.repeats)
        package_latency = times["package"]
        for name in ("eager", "torch.compile"):
            if name in times:
                yield Ratio(
                    f"{case.name} {case.describe(point)} vs {name}",
                    _value("package", package_latency),
                    _value(name, times[name]),
                    note=f"p95 {package_latency.p95_us:.0f} and {times[name].p95_us:.0f} µs",
                )


def _candidates(
    case: Case, package: Any, eager: Any, compiled: Any, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    """Return name → function, which runs the package, eager PyTorch or torch.compile.

    PyTorch gets the inputs in the model's precision. If torch.compile fails, it is left out.
    """
    import torch

    dtype = getattr(torch, case.model.precision)

    def in_model_precision(value: Any) -> Any:
        return value.to(dtype) if value.is_floating_point() else value

    eager_args = [in_model_precision(value) for value in args]
    eager_kwargs = {name: in_model_precision(value) for name, value in kwargs.items()}
    candidates: dict[str, Callable[[], object]] = {
        "package": lambda: package(*args, **kwargs),
        "eager": lambda: eager(*eager_args, **eager_kwargs),
    }
    try:
        with torch.inference_mode():
            compiled(*eager_args, **eager_kwargs)
        candidates["torch.compile"] = lambda: compiled(*eager_args, **eager_kwargs)
    except Exception as error:  # for example on a host without a C compiler
        print(f"    torch.compile of {case.name}: {type(error).__name__}: {str(error)[:200]}")
    return candidates


def _value(name: str, time: Latency) -> Value:
    return Value(name, round(time.p50_us, 1), "µs")
