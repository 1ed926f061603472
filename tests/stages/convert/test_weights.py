"""Weights put into a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from trtbuild.stages.convert.weights import materialize


def test_weights_go_in_by_name_as_arrays_or_bytes(made: Any, converted: Any) -> None:
    model, weights = converted("linear").model, made("linear").weights()
    as_bytes = {name: value.tobytes() for name, value in weights.items()}
    assert materialize(model, weights) == materialize(model, as_bytes)
    proto = onnx.ModelProto.FromString(materialize(model, weights))
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    np.testing.assert_array_equal(found["w0"], weights["w0"])


def test_an_array_that_is_not_contiguous_goes_in_row_major(made: Any, converted: Any) -> None:
    weights = made("linear").weights()
    turned = {**weights, "w0": np.asfortranarray(weights["w0"])}
    assert materialize(converted("linear").model, turned) == materialize(converted("linear").model, weights)


def test_weights_that_the_model_does_not_read_may_be_missing(made: Any, converted: Any) -> None:
    weights = made("unused").weights()
    read = {t.name for t in onnx.ModelProto.FromString(converted("unused").model).graph.initializer}
    assert len(read) < len(weights)
    assert materialize(converted("unused").model, {name: weights[name] for name in read})


def test_rejects_missing_weights_and_wrong_sizes(made: Any, converted: Any) -> None:
    weights = made("linear").weights()
    with pytest.raises(KeyError):
        materialize(converted("linear").model, {"w0": weights["w0"]})
    with pytest.raises(ValueError, match="w0 has 128 bytes; 4 were given"):
        materialize(converted("linear").model, {**weights, "w0": b"abcd"})
