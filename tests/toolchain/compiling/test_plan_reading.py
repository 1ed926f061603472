"""`read_plan` reads the types of weights and kernels from plans of TensorRT-RTX."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper as h

from tests.toolchain.conftest import job_and_blobs, model
from trtbuild.core.engines.plan_contents import Kernel, PlanContents, types_of_layers
from trtbuild.core.model.spec import ShapeRange
from trtbuild.toolchain.compiling.compiler import compile_engine
from trtbuild.toolchain.compiling.plan_reading import read_plan

#: A text of a plan, in the form of TensorRT-RTX 1.7.1. The kernel of the kind ``shape_call`` only computes sizes.
TEXT = """header {
  version = 5
}
descriptors {
  tensor={ alignment=128 const_payload_size=64 dims={ 8 8 } name="w" offset=0 rank0=0 region=r strides={ 8 1 } type=int8 }
  tensor={ alignment=128 const_payload_size=4 dims={ 1 } name="alpha" offset=1 rank0=1 region=r strides={ 1 } type=float }
  tensor={ alignment=4 dims={ "batch" 8 } mem_prop=0 name="x" offset=0 rank0=0 region="" strides={ 8 1 } type=int8 }
  tensor={ alignment=8 dims={ 1 } mem_prop=100 name="batch" offset=0 rank0=0 region="" strides={ 1 } type=int64 }
  tensor={ alignment=4 dims={ "batch" 8 } mem_prop=0 name="y" offset=0 rank0=0 region="" strides={ 8 1 } type=half }
}
main {
 label bb1:
  shape_call={ name="s" stream=0  layers="" subg_id=0 }
  fully_connected={ name="n0" output={"y" } input={"x" "w" "alpha" "batch" } layers="[ONNX Layer: n0]\x1f[ONNX Layer: n1]" }
  function={ name=__myl_Add fqn=__myl_Add_0 input_args={ "y" "batch" } output_args={ "y" } layers="[ONNX Layer: n1]" }
}
"""


def plan(*texts: str) -> bytes:
    """A plan with these texts. Before each text are the marker ``NLYM``, four other bytes, and the length of the text."""
    return b"ptrt".join(
        b"NLYM\xa1\xda\x1e\x00" + len(text.encode()).to_bytes(8, "little") + text.encode() for text in texts
    )


def test_a_plan_names_the_types_of_weights_and_kernels() -> None:
    contents = read_plan(b"before" + plan(TEXT) + b"after")
    assert contents == PlanContents(
        {"int8": 64, "float32": 4},
        (
            Kernel("fully_connected", "n0", ("n0", "n1"), ("int8",), ("float16",)),
            Kernel("function", "__myl_Add", ("n1",), ("float16",), ("float16",)),
        ),
    )
    assert types_of_layers(contents.kernels) == {
        "n0": (("int8",), ("float16",)),
        "n1": (("float16", "int8"), ("float16",)),
    }
    assert contents.stores_quantized_weights and contents.multiplies_quantized_numbers


def test_adds_the_weights_and_kernels_of_several_texts() -> None:
    contents = read_plan(plan(TEXT, TEXT))
    assert contents is not None and contents.weights["int8"] == 128 and len(contents.kernels) == 4


@pytest.mark.parametrize(
    "data",
    [b"", b"ptrt" * 100, plan(TEXT)[:40], plan("header {\n}\n"), plan(TEXT)[16:]],
    ids=["empty", "no text", "truncated text", "no kernels", "no marker"],
)
def test_returns_none_for_a_plan_that_names_no_kernel(data: bytes) -> None:
    assert read_plan(data) is None


# Kernels of the kinds ``fully_connected`` and ``corrltn`` (a correlation, so a convolution) compute products. A product may
# also be hidden in a ``function`` whose name contains ``Fc``, or in a kernel of an unknown kind, such as ``fmha``.
@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([("fully_connected", "n0", "int8")], True),
        ([("fully_connected", "n0", "float32")], False),
        ([("corrltn", "n0", "float16"), ("function", "__myl_MulCast", "int8")], False),
        ([("fully_connected", "n0", "float32"), ("function", "__myl_CastFc", "int8")], None),
        ([("fully_connected", "n0", "float32"), ("fmha", "n1", "float16")], None),
        ([("function", "__myl_MulCast", "int8")], None),
    ],
)
def test_finds_products_of_quantized_numbers_or_returns_none_if_a_kernel_may_hide_one(
    kernels: list[tuple[str, str, str]], expected: bool | None
) -> None:
    contents = PlanContents({}, tuple(Kernel(kind, name, (), (type_,), ()) for kind, name, type_ in kernels))
    assert contents.multiplies_quantized_numbers is expected


def _contents_of_real_plan(weight: np.ndarray, *, quantized_inputs: bool) -> PlanContents:
    """The contents of a real plan for one product, ``i0 @ weight``. An int8 weight is dequantized."""
    # w0 is the weight, w1 is the scale of the inputs, and w2 are the scales of an int8 weight.
    weights = [weight, np.float32(0.02), *([np.full(64, 0.01, np.float32)] if weight.dtype == np.int8 else [])]
    nodes, left, right = [], "i0", "w0"
    if quantized_inputs:
        nodes += [
            h.make_node("QuantizeLinear", ["i0", "w1", "zero"], ["q"]),
            h.make_node("DequantizeLinear", ["q", "w1"], ["d"]),
        ]
        left = "d"
    if weight.dtype == np.int8:
        nodes.append(h.make_node("DequantizeLinear", ["w0", "w2"], ["w"], axis=1))
        right = "w"
    nodes.append(h.make_node("MatMul", [left, right], ["o0"]))
    data = model(nodes, [("FLOAT", (8, 64))], ["FLOAT"], weights, {"zero": np.int8(0)})
    job = job_and_blobs(data, weights, [ShapeRange((8, 64), (8, 64), (8, 64))])
    contents = read_plan(compile_engine(job.job, job.read).plan)
    assert contents is not None
    return contents


@pytest.mark.parametrize("quantized_inputs", [True, False])
def test_tensorrt_rtx_keeps_int8_weights(quantized_inputs: bool) -> None:
    weight = np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8)
    contents = _contents_of_real_plan(weight, quantized_inputs=quantized_inputs)
    assert contents.weights["int8"] == 64 * 64
    assert contents.multiplies_quantized_numbers is quantized_inputs


def test_tensorrt_rtx_multiplies_floats_if_only_the_inputs_are_quantized() -> None:
    contents = _contents_of_real_plan(
        np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), quantized_inputs=True
    )
    assert contents.weights["float32"] >= 4 * 64 * 64 and not contents.stores_quantized_weights
    assert contents.multiplies_quantized_numbers is False
