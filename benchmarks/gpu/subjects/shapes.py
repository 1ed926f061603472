"""Compare every package with eager PyTorch on the same GPU, at min, opt, max and random shapes of every profile.

For an ONNX file, onnxruntime on the CPU takes the place of eager PyTorch. Eager uses the precision of the original model,
without TF32. The row of a float32 model also shows the error of eager with TF32, except for ONNX files. The worst error
over outputs and shapes may be at most 1e-3 in float32 (TensorRT uses TF32) and 1e-2 in float16. Integers and bools must be
equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.figure import Check, Row
from benchmarks.gpu.cases import Case, NoEagerModel, cases, output_tensors
from benchmarks.gpu.host import Host, tolerance


def rows(host: Host) -> Iterator[Row]:
    _allow_tf32(False)
    for case in cases(host.examples):
        try:
            yield _compare(case, host)
        except NoEagerModel as reason:
            print(f"    {reason}: nothing to compare with", flush=True)
        except Exception as error:  # the other models are still measured
            yield Check(f"{case.name}: runs", False, f"{type(error).__name__}: {error}"[:600])


def _compare(case: Case, host: Host) -> Row:
    import torch

    import trtbuild

    eager = case.eager(host.device)
    loaded = trtbuild.load(case.package, device=host.device)
    module = loaded.module()
    errors: list[tuple[float, str]] = []  # the error at each point, and the point as text
    eager_tf32_error = 0.0
    with torch.no_grad():
        for point in case.points(host.points):
            args, kwargs = case.inputs(point, host.device)
            expected, actual = eager(*args, **kwargs), module(*args, **kwargs)
            host.synchronize()
            if case.model.source.kind == "network":  # its outputs are a flat list
                expected, actual = output_tensors(expected), output_tensors(actual)
            errors.append((error_of(actual, expected), case.describe(point)))
            if case.model.precision == "float32" and case.model.source.kind != "onnx":
                _allow_tf32(True)
                eager_tf32_error = max(eager_tf32_error, error_of(eager(*args, **kwargs), expected))
                _allow_tf32(False)
    worst, where = max(errors)
    profiles = len(case.model.profiles)
    parts = {part.kind for part in loaded.target.partitions.partitions} if loaded.target else set()
    text = f"worst {worst:.1e} at {where}; {len(errors)} points, {profiles} profile{'s' * (profiles > 1)}"
    text += f", {case.model.precision}" + (", with a Torch partition" if "torch" in parts else "")
    text += f"; eager's own error with TF32 {eager_tf32_error:.1e}" if eager_tf32_error else ""
    return Check(f"{case.name}: equal to eager at every shape", worst <= tolerance(case.model.precision), text)


def _allow_tf32(allowed: bool) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def error_of(actual: Any, expected: Any) -> float:
    """Return the largest max|a-b| / max|b| (b: `expected`) over all outputs.

    The result is infinite if the number of outputs, a dtype, a shape or the keys of a dict differ. It is also infinite if
    an integer or bool differs, or if a value is infinite or NaN on one side only.
    """
    import torch.utils._pytree as pytree

    from trtbuild.stages.verify.comparing import deviation

    actual_tensors, expected_tensors = output_tensors(actual), output_tensors(expected)
    if isinstance(expected, dict) and pytree.tree_structure(dict(expected)) != pytree.tree_structure(dict(actual)):
        return math.inf
    if len(actual_tensors) != len(expected_tensors):
        return math.inf
    return max((deviation(a, b).error for a, b in zip(actual_tensors, expected_tensors, strict=True)), default=0.0)
