"""The examples of Torch-TensorRT's user guide, with ``import trtbuild as torch_tensorrt``.

The pages are "Dynamic shapes with Torch-TensorRT", "Compiling Exported Programs", "TensorRT Backend for torch.compile" and
"Saving models". The calls are those of the guide, with small models. The guide needs a GPU. The argument `no_gpu` makes the
calls work without one: engines are built for Ada, and the reference program runs on the CPU. A table in
docs/in-a-program.md lists the names that differ between the two libraries. The last tests check some of these names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import trtbuild as torch_tensorrt
from tests.guide.conftest import ConvNet, assert_equals_eager
from trtbuild.errors import UsageError

SMALL = (1, 3, 16, 16)


@pytest.fixture
def no_gpu(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a machine without a GPU needs."""
    return options


@pytest.fixture
def model(conv_net: torch.nn.Module) -> torch.nn.Module:
    return conv_net


def ranged(**more: Any) -> torch_tensorrt.Input:
    """The model's input, with a batch size from 1 to 32."""
    return torch_tensorrt.Input(
        min_shape=(1, 3, 16, 16), opt_shape=(8, 3, 16, 16), max_shape=(32, 3, 16, 16), dtype=torch.float32, **more
    )


# -- dynamic shapes


def test_static_and_dynamic_shapes(model: Any, no_gpu: dict[str, Any]) -> None:
    inputs = torch_tensorrt.Input(shape=[1, 3, 16, 16], dtype=torch.float32)
    assert_equals_eager(torch_tensorrt.compile(model, ir="dynamo", inputs=inputs, **no_gpu), model, torch.randn(SMALL))
    inputs = torch_tensorrt.Input(
        min_shape=[1, 3, 16, 16], opt_shape=[4, 3, 16, 16], max_shape=[8, 3, 16, 16], dtype=torch.float32
    )
    trt_gm = torch_tensorrt.compile(model, ir="dynamo", inputs=inputs, **no_gpu)
    for batch in (1, 4, 8):
        assert_equals_eager(trt_gm, model, torch.randn(batch, 3, 16, 16))


def test_the_torchscript_frontend(model: Any, no_gpu: dict[str, Any]) -> None:
    trt_ts = torch_tensorrt.compile(model, ir="ts", inputs=[ranged()], **no_gpu)
    assert_equals_eager(trt_ts, model, torch.randn(2, 3, 16, 16))


def test_custom_dynamic_shape_constraints(no_gpu: dict[str, Any]) -> None:
    class MatMul(torch.nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return torch.matmul(query, key.transpose(-1, -2))

    model = MatMul().eval()
    inputs = [torch.randn(1, 12, 7, 64), torch.randn(1, 12, 7, 64)]
    seq_len = torch.export.Dim("seq_len", min=1, max=10)
    dynamic_shapes = ({2: seq_len}, {2: seq_len})
    exp_program = torch.export.export(model, tuple(inputs), dynamic_shapes=dynamic_shapes)
    trt_gm = torch_tensorrt.dynamo.compile(exp_program, inputs, **no_gpu)
    assert_equals_eager(trt_gm, model, *inputs)
    assert_equals_eager(trt_gm, model, torch.randn(1, 12, 10, 64), torch.randn(1, 12, 10, 64))


class Encoder(torch.nn.Module):
    """Takes token ids and a mask, as encoders of the library transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(2, 8)
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.layer(self.table(input_ids)))
        return (hidden * attention_mask[:, :, None]).sum(1)


def test_a_dynamic_dimension_that_several_inputs_share(no_gpu: dict[str, Any]) -> None:
    model = Encoder().eval()
    inputs = [
        torch_tensorrt.Input(
            min_shape=(1, 16),
            opt_shape=(4, 16),
            max_shape=(8, 16),
            dtype=torch.int64,
            name=name,
            shared_dims={0: "B"},
        )
        for name in ("input_ids", "attention_mask")
    ]
    trt_model = torch_tensorrt.compile(model, ir="dynamo", inputs=inputs, **no_gpu)
    for batch in (1, 8):
        assert_equals_eager(trt_model, model, torch.randint(0, 2, (batch, 16)), torch.randint(0, 2, (batch, 16)))


def test_mark_dynamic(model: Any, no_gpu: dict[str, Any]) -> None:
    inputs = torch.randn(4, 3, 16, 16)
    torch._dynamo.mark_dynamic(inputs, 0, min=1, max=8)
    trt_gm = torch.compile(model, backend="trtbuild", options=no_gpu)
    assert_equals_eager(trt_gm, model, inputs)
    assert_equals_eager(trt_gm, model, torch.randn(2, 3, 16, 16))


# -- exported programs


def test_a_program_is_compiled(model: Any, no_gpu: dict[str, Any]) -> None:
    inputs = [torch.randn(SMALL, dtype=torch.float32)]
    exp_program = torch.export.export(model, tuple(inputs))
    assert_equals_eager(torch_tensorrt.dynamo.compile(exp_program, inputs, **no_gpu), model, *inputs)
    assert_equals_eager(torch_tensorrt.compile(exp_program, ir="dynamo", arg_inputs=inputs, **no_gpu), model, *inputs)


def test_trace_and_compile(model: Any, no_gpu: dict[str, Any]) -> None:
    inputs = [ranged(name="x")]
    exp_program = torch_tensorrt.dynamo.trace(model, arg_inputs=inputs)
    assert isinstance(exp_program, torch.export.ExportedProgram)
    trt_gm = torch_tensorrt.dynamo.compile(exp_program, arg_inputs=inputs, **no_gpu)
    for batch in (1, 32):
        assert_equals_eager(trt_gm, model, torch.randn(batch, 3, 16, 16))
    static = torch_tensorrt.dynamo.trace(model, [torch.randn(SMALL)])
    assert not static.range_constraints


def test_frequent_settings_are_accepted(model: Any, no_gpu: dict[str, Any]) -> None:
    trt_gm = torch_tensorrt.compile(
        model,
        ir="dynamo",
        inputs=[ranged()],
        enabled_precisions={torch.float, torch.half},
        truncate_long_and_double=True,
        torch_executed_ops={"torch.ops.aten.mean.dim"},
        min_block_size=1,
        **no_gpu,
    )
    assert_equals_eager(trt_gm, model, torch.randn(2, 3, 16, 16), tolerance=2e-2)


# -- torch.compile


class Subtracts(torch.nn.Module):
    """A module with a subtraction. The test keeps the subtraction in PyTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x * 2) - x * 0.5) + 1


def test_settings_of_torch_compile_are_accepted(no_gpu: dict[str, Any]) -> None:
    model, inputs = Subtracts().eval(), torch.randn(4, 8)
    optimized_model = torch.compile(
        model,
        backend="trtbuild",
        dynamic=False,
        options={
            "truncate_long_and_double": True,
            "enabled_precisions": {torch.float, torch.half},
            "min_block_size": 2,
            "torch_executed_ops": {"torch.ops.aten.sub.Tensor"},
            "optimization_level": 4,
            **no_gpu,
        },
    )
    for _ in range(2):  # the first call compiles the model
        assert_equals_eager(optimized_model, model, inputs, tolerance=1e-2)


def test_graph_breaks_are_explained(model: Any, no_gpu: dict[str, Any]) -> None:
    inputs = [torch.randn(SMALL)]
    explanation = torch._dynamo.explain(model)(*inputs)
    assert explanation.graph_break_count == 0
    torch._dynamo.reset()
    assert_equals_eager(torch.compile(model, backend="trtbuild", dynamic=False, options=no_gpu), model, *inputs)


# -- saving and loading


def test_save_and_load_a_static_model(model: Any, no_gpu: dict[str, Any], tmp_path: Path) -> None:
    inputs = [torch.randn(SMALL)]
    trt_gm = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=inputs, **no_gpu)
    torch_tensorrt.save(trt_gm, f"{tmp_path}/trt.ep", arg_inputs=inputs)
    assert_equals_eager(torch.export.load(f"{tmp_path}/trt.ep").module(), model, *inputs)
    torch_tensorrt.save(trt_gm, f"{tmp_path}/trt.pt2", output_format="exported_program", inputs=inputs)
    assert_equals_eager(torch_tensorrt.load(f"{tmp_path}/trt.pt2", device="cpu").module(), model, *inputs)


def test_save_with_the_dims_of_torch_export(model: Any, no_gpu: dict[str, Any], tmp_path: Path) -> None:
    example_input = torch.randn((2, 3, 16, 16))
    dyn_batch = torch.export.Dim("batch", min=1, max=32)
    dynamic_shapes = {"x": {0: dyn_batch}}
    exp_program = torch.export.export(model, (example_input,), dynamic_shapes=dynamic_shapes, strict=False)
    trt_gm = torch_tensorrt.dynamo.compile(exp_program, arg_inputs=[ranged()], **no_gpu)
    torch_tensorrt.save(trt_gm, f"{tmp_path}/trt_dynamic.ep", arg_inputs=[example_input], dynamic_shapes=dynamic_shapes)
    loaded_model = torch_tensorrt.load(f"{tmp_path}/trt_dynamic.ep", device="cpu").module()
    for batch in (4, 16):
        assert_equals_eager(loaded_model, model, torch.randn(batch, 3, 16, 16))


def test_save_with_inputs(model: Any, no_gpu: dict[str, Any], tmp_path: Path) -> None:
    inputs = [ranged(name="x")]
    trt_gm = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=inputs, **no_gpu)
    torch_tensorrt.save(trt_gm, f"{tmp_path}/trt_dynamic.ep", arg_inputs=inputs)
    loaded_model = torch_tensorrt.load(f"{tmp_path}/trt_dynamic.ep", device="cpu").module()
    for batch in (4, 16):
        assert_equals_eager(loaded_model, model, torch.randn(batch, 3, 16, 16))


def test_save_several_dynamic_dimensions(model: Any, no_gpu: dict[str, Any], tmp_path: Path) -> None:
    inputs = [
        torch_tensorrt.Input(min_shape=(1, 3, 8, 8), opt_shape=(8, 3, 16, 16), max_shape=(16, 3, 32, 32), name="image")
    ]
    trt_model = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=inputs, **no_gpu)
    torch_tensorrt.save(trt_model, f"{tmp_path}/model.ep", arg_inputs=inputs)
    loaded = torch_tensorrt.load(f"{tmp_path}/model.ep", device="cpu").module()
    assert_equals_eager(loaded, model, torch.randn(4, 3, 8, 16))
    assert_equals_eager(loaded, model, torch.randn(12, 3, 24, 24))


def test_save_with_keyword_arguments(no_gpu: dict[str, Any], tmp_path: Path) -> None:
    class Masks(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * mask.sum(1, keepdim=True)

    model = Masks().eval()
    arg_inputs = [
        torch_tensorrt.Input(
            min_shape=(1, 10), opt_shape=(4, 10), max_shape=(8, 10), name="x", shared_dims={0: "batch"}
        )
    ]
    kwarg_inputs = {
        "mask": torch_tensorrt.Input(
            min_shape=(1, 5), opt_shape=(4, 5), max_shape=(8, 5), name="mask", shared_dims={0: "batch"}
        )
    }
    trt_model = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, **no_gpu)
    torch_tensorrt.save(trt_model, f"{tmp_path}/model.ep", arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs)
    loaded = torch_tensorrt.load(f"{tmp_path}/model.ep", device="cpu").module()
    for batch in (1, 8):
        assert_equals_eager(loaded, model, torch.randn(batch, 10), mask=torch.randn(batch, 5))


# -- names that differ


@pytest.mark.parametrize("output_format", ["torchscript", "aot_inductor", "executorch"])
def test_the_error_names_an_unknown_output_format(
    model: Any, no_gpu: dict[str, Any], tmp_path: Path, output_format: str
) -> None:
    trt_gm = torch_tensorrt.compile(model, ir="dynamo", arg_inputs=[torch.randn(SMALL)], **no_gpu)
    with pytest.raises(UsageError, match=f"trtbuild does not write output_format='{output_format}'"):
        torch_tensorrt.save(trt_gm, tmp_path / "trt", output_format=output_format, retrace=True)


@pytest.mark.parametrize("option", [{"debug": True}, {"use_python_runtime": False}, {"min_block_size": float("inf")}])
def test_the_error_names_an_option_that_is_not_accepted(no_gpu: dict[str, Any], option: dict[str, Any]) -> None:
    model = torch.compile(ConvNet().eval(), backend="trtbuild", options={**no_gpu, **option})
    with pytest.raises(BackendCompilerFailed, match=next(iter(option))):
        model(torch.randn(SMALL))


def test_the_table_on_the_page_names_the_formats_and_options_that_differ() -> None:
    page = (Path(__file__).parents[2] / "docs" / "in-a-program.md").read_text()
    _, _, table = page.partition("## Coming from Torch-TensorRT")
    for word in (
        "torchscript",
        "aot_inductor",
        "executorch",
        "debug",
        "use_python_runtime",
        'float("inf")',
        "backend=",
    ):
        assert word in table
