"""Compile the class-token model of Torch-TensorRT's guide in three ways, and compare each with eager at several batches.

1. ``torch.compile(model, backend="trtbuild")`` with ``torch._dynamo.mark_dynamic``.
2. ``trtbuild.compile`` with `trtbuild.Input` ranges.
3. ``torch.export`` with a named Dim, then ``trtbuild.compile`` of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from benchmarks.figure import Check, Measurement, Row, Value
from benchmarks.gpu.cases import Case, cases
from benchmarks.gpu.host import Host, tolerance
from benchmarks.gpu.subjects.shapes import error_of
from benchmarks.gpu.timing import latencies
from trtbuild.core.model.builder_settings import BuilderSettings

_BATCHES = (1, 2, 5, 8, 17, 32)


def settings(case: Case, device: str) -> dict[str, Any]:
    """Return the options of a compilation: the example's target and builder settings, and the device."""
    default = BuilderSettings()
    options: dict[str, Any] = {"target": case.model.targets[0], "device": device}
    for field in fields(BuilderSettings):
        value = getattr(case.model.builder, field.name)
        if value != getattr(default, field.name):
            options[field.name] = list(value) if isinstance(value, tuple) else value
    return options


def rows(host: Host) -> Iterator[Row]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    (case,) = [case for case in cases(host.examples) if case.name == "class_token"]
    model = case.eager(host.device)
    cache, options = host.work / "ways-cache", settings(case, host.device)
    compiled_by: dict[str, Any] = {}
    for name, way in (
        ("torch.compile", _by_backend),
        ("trtbuild.compile", compile_with_ranges),
        ("torch.export", _by_export),
    ):
        try:
            compiled_by[name] = way(model, options, host.device, str(cache))
            worst = max(_errors(model, compiled_by[name], host.device))
            found = f"worst {worst:.1e} at batches {', '.join(map(str, _BATCHES))}"
            yield Check(f"class token by {name}: equal to eager", worst <= tolerance("float32"), found)
        except Exception as error:  # the other ways are still measured
            compiled_by.pop(name, None)
            yield Check(f"class token by {name}: runs", False, f"{type(error).__name__}: {error}"[:800])
    x = torch.randn(8, 196, 768, device=host.device)
    calls = {name: partial(compiled, x) for name, compiled in compiled_by.items()}
    with torch.no_grad():
        for name, time in latencies(calls, host.synchronize, host.repeats).items():
            yield Measurement(f"class token by {name}, batch 8", Value("call", round(time.p50_us, 1), "µs"))


def _errors(model: Any, compiled: Any, device: str) -> Iterator[float]:
    import torch

    for batch in _BATCHES:
        x = torch.randn(batch, 196, 768, device=device)
        with torch.no_grad():
            yield error_of(compiled(x), model(x))


def _by_backend(model: Any, options: dict[str, Any], device: str, cache: str) -> Any:
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="trtbuild", options={**options, "cache_dir": cache})
    x = torch.randn(8, 196, 768, device=device)
    torch._dynamo.mark_dynamic(x, 0, min=1, max=32)
    with torch.no_grad():
        compiled(x)
    return compiled


def compile_with_ranges(model: Any, options: dict[str, Any], device: str, cache: str) -> Any:
    """Compile with `trtbuild.Input` ranges (the second way)."""
    import trtbuild

    ranges = trtbuild.Input(min_shape=(1, 196, 768), opt_shape=(8, 196, 768), max_shape=(32, 196, 768))
    return trtbuild.compile(model, inputs=[ranges], **options, cache_dir=cache)


def _by_export(model: Any, options: dict[str, Any], device: str, cache: str) -> Any:
    import torch

    import trtbuild

    example = torch.randn(8, 196, 768, device=device)
    batch = torch.export.Dim("batch", min=1, max=32)
    program = torch.export.export(model, (example,), dynamic_shapes={"x": {0: batch}})
    return trtbuild.compile(program, **options, cache_dir=cache)
