"""The reference program of an ONNX model: onnxruntime runs the model, which does not contain its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper as h

from tests.toolchain.conftest import model
from trtbuild.core.model.graph_kinds import ONNX, PROGRAM
from trtbuild.errors import PackageDamaged
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.onnx_part import OnnxPart, is_onnx

CALL = Call(profile=0, sizes=(3,), stream=0, device="cpu")
WEIGHT = np.arange(20, dtype=np.float32).reshape(4, 5)


def product(kind: str = "FLOAT") -> bytes:
    weights = [WEIGHT.astype(np.float16) if kind == "FLOAT16" else WEIGHT]
    return model([h.make_node("MatMul", ["i0", "w0"], ["o0"])], [(kind, ["n", 4])], [kind], weights)


def test_computes_the_model_and_returns_new_tensors() -> None:
    part = OnnxPart(product(), [torch.from_numpy(WEIGHT)], "net")
    x = torch.randn(3, 4)
    (first,) = part([x], CALL)
    (second,) = part([x.t().contiguous().t()], CALL)  # not contiguous
    assert torch.allclose(first, x @ torch.from_numpy(WEIGHT))
    assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()


def test_computes_in_half_precision() -> None:
    weight = torch.from_numpy(WEIGHT).half()
    (result,) = OnnxPart(product("FLOAT16"), [weight], "net")([torch.ones(1, 4).half()], CALL)
    assert result.dtype is torch.float16
    assert torch.equal(result, torch.ones(1, 4).half() @ weight)


def test_a_bool_output_is_a_bool_tensor() -> None:
    program = model([h.make_node("Greater", ["i0", "i1"], ["o0"])], [("FLOAT", ["n"]), ("FLOAT", ["n"])], ["BOOL"], [])
    (result,) = OnnxPart(program, [], "net")([torch.tensor([1.0, 0.0, 2.0]), torch.zeros(3)], CALL)
    assert result.dtype is torch.bool and result.tolist() == [True, False, True]


def test_a_pytorch_program_is_distinguished_from_an_onnx_model() -> None:
    assert is_onnx(ONNX.program_path("0" * 64))
    assert not is_onnx(PROGRAM.program_path("0" * 64))


def test_rejects_a_model_that_onnxruntime_cannot_read() -> None:
    with pytest.raises(PackageDamaged, match="refuses the model of net"):
        OnnxPart(b"not a model", [], "net")
