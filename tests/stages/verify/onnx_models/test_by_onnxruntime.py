"""`OnnxRuntime` runs the ONNX model of a partition in onnxruntime."""

from __future__ import annotations

import dataclasses

import onnx
import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import ConvertedModel, FunctionModule, convert_module
from trtbuild.core.model.verification import Point
from trtbuild.stages.verify.onnx_models import by_onnxruntime
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import NotRunnable, PartFailed, Weights

POINT = Point(profile=0, which="min", sizes=(2,), seed=0)


def runtime(converted: ConvertedModel) -> OnnxRuntime:
    return OnnxRuntime(
        lambda graph: converted.read(converted.job.onnx[graph]), Weights(converted.job.weights, converted.read)
    )


def test_inputs_need_not_be_contiguous(mlp: ConvertedModel) -> None:
    (part,) = mlp.partitions.partitions
    value = torch.randn(8, 2)
    (transposed,) = runtime(mlp)(part, [value.t()], POINT)
    (contiguous,) = runtime(mlp)(part, [value.t().contiguous()], POINT)
    assert torch.equal(transposed, contiguous)


def test_runs_scalars_and_empty_tensors() -> None:
    converted = convert_module(
        FunctionModule(lambda _, x, y: (x.sum(), x[:, :0] * 2, y + x[0, 0])), [(("b", 4), "float32"), ((), "float32")]
    )
    (part,) = converted.partitions.partitions
    total, empty, scalar = runtime(converted)(part, [torch.ones(2, 4), torch.tensor(3.0)], POINT)
    assert (total.shape, float(total), empty.shape, scalar.shape) == ((), 8.0, (2, 0), ())
    assert float(scalar) == 4.0


def test_inner_values_are_returned_by_name(mlp: ConvertedModel) -> None:
    (part,) = mlp.partitions.partitions
    graph = onnx.ModelProto.FromString(mlp.read(mlp.job.onnx[part.graph])).graph
    first = graph.node[0].output[0]
    inner, last = runtime(mlp).values(part, [torch.ones(2, 8)], [first, "o0"])
    assert inner.shape == (2, 16) and torch.equal(last, runtime(mlp)(part, [torch.ones(2, 8)], POINT)[0])


def test_a_wrong_type_in_the_conversion_is_visible() -> None:
    def narrow_output(graph: onnx.GraphProto) -> None:
        """Leave the output in float16. In PyTorch it is float32."""
        cast = graph.node[-1]
        assert cast.op_type == "Cast" and cast.output[0] == "o0"
        cast.attribute[0].i = onnx.TensorProto.FLOAT16
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16

    converted = convert_module(nn.Sequential(nn.Linear(8, 4)).eval(), [(("b", 8), "float32")], "float16").altered(
        narrow_output
    )
    (part,) = converted.partitions.partitions
    (result,) = runtime(converted)(part, [torch.ones(2, 8)], POINT)
    assert result.dtype is torch.float16


def test_without_inferred_types_float16_is_run_and_bfloat16_is_not_runnable(monkeypatch: pytest.MonkeyPatch) -> None:
    def untyped(_: object) -> None:
        raise by_onnxruntime.UnknownElementType("no type")

    monkeypatch.setattr(by_onnxruntime, "convert_to_float32", untyped)
    module = nn.Sequential(nn.Linear(8, 4)).eval()
    half = convert_module(module, [(("b", 8), "float32")], "float16")
    (part,) = half.partitions.partitions
    assert runtime(half)(part, [torch.ones(2, 8)], POINT)[0].shape == (2, 4)
    bfloat = convert_module(module, [(("b", 8), "float32")], "bfloat16")
    with pytest.raises(NotRunnable):
        runtime(bfloat)(bfloat.partitions.partitions[0], [torch.ones(2, 8)], POINT)


def test_a_failure_of_onnxruntime_is_an_error(mlp: ConvertedModel) -> None:
    with pytest.raises(PartFailed, match="onnxruntime fails while it runs"):
        runtime(mlp)(mlp.partitions.partitions[0], [torch.ones(2, 9)], POINT)


def test_beyond_the_limit_of_bytes_only_the_last_session_is_kept(
    mlp: ConvertedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_onnxruntime, "_MAX_CACHED_BYTES", 1)
    run = runtime(mlp)
    (part,) = mlp.partitions.partitions
    other = dataclasses.replace(part, name="other")
    other_weights = dataclasses.replace(part, weights=(part.weights[0], part.weights[2], *part.weights[2:]))
    for each_part in (part, other, other_weights, part):
        run(each_part, [torch.ones(2, 8)], POINT)
        assert len(run._sessions) == 1


def test_a_weight_with_another_type_than_in_the_model_is_an_error(mlp: ConvertedModel) -> None:
    weights = Weights(mlp.job.weights, mlp.read)
    first = weights[0]
    weights._tensors[mlp.job.weights[0]] = first.to(torch.complex64)
    run = OnnxRuntime(lambda graph: mlp.read(mlp.job.onnx[graph]), weights)
    with pytest.raises(PartFailed, match="the weight w0 is complex64, which is not its type in the model"):
        run(mlp.partitions.partitions[0], [torch.ones(2, 8)], POINT)


def test_a_type_that_numpy_lacks_is_not_compared(mlp: ConvertedModel) -> None:
    with pytest.raises(NotRunnable, match="has no type for float8_e4m3fn"):
        runtime(mlp)(mlp.partitions.partitions[0], [torch.ones(2, 8).to(torch.float8_e4m3fn)], POINT)
