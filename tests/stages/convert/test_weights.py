"""Weights that are inserted into an ONNX model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from trtbuild.stages.convert.weights import materialize


def test_weights_are_inserted_by_name_as_arrays_or_bytes(lowered_case: Any, converted: Any) -> None:
    model, weights = converted("linear").model, lowered_case("linear").weights()
    as_bytes = {name: value.tobytes() for name, value in weights.items()}
    assert materialize(model, weights) == materialize(model, as_bytes)
    proto = onnx.ModelProto.FromString(materialize(model, weights))
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    np.testing.assert_array_equal(arrays["w0"], weights["w0"])


def test_an_array_that_is_not_contiguous_is_inserted_in_row_major_order(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("linear").weights()
    column_major = {**weights, "w0": np.asfortranarray(weights["w0"])}
    assert materialize(converted("linear").model, column_major) == materialize(converted("linear").model, weights)


def test_unused_weights_may_be_missing(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("unused").weights()
    used = {t.name for t in onnx.ModelProto.FromString(converted("unused").model).graph.initializer}
    assert len(used) < len(weights)
    assert materialize(converted("unused").model, {name: weights[name] for name in used})


def test_rejects_missing_weights_and_wrong_sizes(lowered_case: Any, converted: Any) -> None:
    weights = lowered_case("linear").weights()
    with pytest.raises(KeyError):
        materialize(converted("linear").model, {"w0": weights["w0"]})
    with pytest.raises(ValueError, match="w0 has 128 bytes; 4 were given"):
        materialize(converted("linear").model, {**weights, "w0": b"abcd"})
