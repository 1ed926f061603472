"""Prove a conversion to an older opset: run both models on the same numbers, and compare.

onnx's version converter changes operators one by one, and does not check its result. It does not look at weights, so
the weights here are random. onnx's reference evaluator runs both models at the example shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from trtbuild.errors import ConversionRefused

#: The largest difference relative to the largest number: the two may differ in the order of operations only.
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-9}
_SEED = 0


def refuse_change(
    before: onnx.ModelProto, after: onnx.ModelProto, shapes: Sequence[Sequence[int]], wanted: int
) -> None:
    """Raise ConversionRefused if `after` computes something else than `before`, or if they cannot be compared.

    `shapes` are those of the last inputs of both. The inputs before them are weights, which have constant shapes.
    """
    feeds = _numbers(before.graph, shapes)
    hint = f"export it with opset_version={wanted}"
    try:
        want = ReferenceEvaluator(before).run(None, feeds)
        got = ReferenceEvaluator(after).run(None, feeds)
    except Exception as error:  # an operator of the reference may raise any error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConversionRefused(
            f"the ONNX model was converted to opset {wanted}, but the result cannot be compared with the original: {first}",
            hint=hint,
        ) from error
    for number, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        gap = _gap(np.asarray(ours), np.asarray(theirs))
        if gap is not None:
            raise ConversionRefused(
                f"onnx's converter to opset {wanted} changes the model: output {number} has {gap}", hint=hint
            )


def _numbers(graph: onnx.GraphProto, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Random inputs: normal floats, zeros and ones for integers and bools, which are legal indices of every table."""
    random = np.random.default_rng(_SEED)
    weights = len(graph.input) - len(shapes)
    feeds: dict[str, Any] = {}
    for number, value in enumerate(graph.input):
        tensor = value.type.tensor_type
        shape = [size.dim_value for size in tensor.shape.dim] if number < weights else list(shapes[number - weights])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            feeds[value.name] = random.integers(0, 2, shape).astype(dtype)
        else:
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
    return feeds


def _gap(ours: Any, theirs: Any) -> str | None:
    """Describe the difference of two arrays; None if they are equal within the tolerance."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if str(theirs.dtype) not in _TOLERANCE:
        return None if np.array_equal(ours, theirs) else "other values"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "NaN or infinities at other places"
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0))
    gap = float(np.abs(a[finite] - b[finite]).max(initial=0))
    if gap <= _TOLERANCE[str(theirs.dtype)] * largest:
        return None
    return f"a relative difference of {gap / largest if largest else float('inf'):.2g}"
