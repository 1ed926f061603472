"""Prove a conversion to an older opset: run both models on the same numbers, and compare.

onnx's version converter does not check its result, so onnx's reference evaluator runs both models at the example shapes.
The weights are random, because the converter does not read their values. The random inputs take only one branch of an If,
so onnx's checker also reads the new model. It finds attributes that the older operators do not have: parsers ignore them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
from onnx.reference import ReferenceEvaluator

from trtbuild.errors import ConversionRefused

#: Type → the largest allowed difference, relative to the largest absolute value in the output. The two models may compute
#: in different orders.
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-9}
_SEED = 0


def refuse_change(before: onnx.ModelProto, after: onnx.ModelProto, shapes: Sequence[Sequence[int]], opset: int) -> None:
    """Raise ConversionRefused if `after`, in `opset`, gives other results than `before`, or if they cannot be compared.

    The last inputs of both models have the `shapes`. The inputs before them are weights.
    """
    feeds = _random_inputs(before.graph, shapes)
    hint = f"export it with opset_version={opset}"
    try:
        onnx.checker.check_model(after)
    except onnx.checker.ValidationError as error:
        raise ConversionRefused(
            f"onnx's converter to opset {opset} writes an invalid model: {str(error).strip().partition(chr(10))[0]}",
            hint=hint,
        ) from error
    try:
        expected = ReferenceEvaluator(before).run(None, feeds)
        results = ReferenceEvaluator(after).run(None, feeds)
    except Exception as error:  # an operator of the reference evaluator may raise any error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConversionRefused(
            f"the ONNX model was converted to opset {opset}, but the result cannot be compared with the original: {first}",
            hint=hint,
        ) from error
    for number, (result, reference) in enumerate(zip(results, expected, strict=True)):
        difference = _difference(np.asarray(result), np.asarray(reference))
        if difference is not None:
            raise ConversionRefused(
                f"onnx's converter to opset {opset} changes the model: output {number} has {difference}", hint=hint
            )


def _random_inputs(graph: onnx.GraphProto, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Name → random input. Floats have a normal distribution. Integers are 0 or 1, because both are valid indices of a
    table with at least two rows."""
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


def _difference(result: Any, reference: Any) -> str | None:
    """The difference of two arrays as text; None if they are equal within the tolerance."""
    if result.dtype != reference.dtype or result.shape != reference.shape:
        return f"{result.dtype}{list(result.shape)} instead of {reference.dtype}{list(reference.shape)}"
    if str(reference.dtype) not in _TOLERANCE:
        return None if np.array_equal(result, reference) else "other values"
    a, b = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):  # infinities must have the same sign
        return "NaN or infinities at other places"
    largest = float(np.abs(b[finite]).max(initial=0))
    largest_difference = float(np.abs(a[finite] - b[finite]).max(initial=0))
    if largest_difference <= _TOLERANCE[str(reference.dtype)] * largest:
        return None
    return f"a relative difference of {largest_difference / largest if largest else float('inf'):.2g}"
