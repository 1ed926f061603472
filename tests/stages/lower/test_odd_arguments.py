"""The exporter alone would translate these calls wrongly. trtbuild refuses them, or gives the results of eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.export import Dim

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.core.model.verification import Point
from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import Weights

_ROWS = {0: Dim("rows", min=2, max=8)}
_SQUARE = {0: (_S := Dim("size", min=2, max=8)), 1: _S}
_INF, _NAN = math.inf, math.nan
_LARGE = torch.tensor([[2**40 + 7, -(2**40) - 7, 2**25 + 1], [-7, 7, -6]])
_NEAR_ZERO = torch.tensor([[1e-9, -1e-9, 0.0, -1e-4], [0.019999, 0.020001, -0.5, 88.0]])
_SPREAD = torch.tensor([[-200.0, 0.0, 30.0], [-90.0, 200.0, -20.0]])
_WIDE_MATRIX = torch.arange(12.0).reshape(3, 4)


def _results(lower_module: Any, text: str, inputs: tuple[torch.Tensor, ...], shapes: Any) -> list[tuple[Any, Any]]:
    """The results of an expression: pairs of the result of ONNX and that of eager PyTorch."""
    traced, program = lower_module(module_from_text([], text, len(inputs)), inputs, "float32", shapes)
    session = onnxruntime.InferenceSession(with_inline_weights(convert(program, 20).model, {}))
    feeds = {entry.name: inputs[int(entry.name[1:])].numpy() for entry in session.get_inputs()}
    results = [torch.from_numpy(np.asarray(value)) for value in session.run(None, feeds)]
    return list(zip(results, traced.eager(), strict=True))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("torch.div(x0, -3, rounding_mode='floor'), torch.div(x0, 3, rounding_mode='trunc')", _LARGE),
        ("torch.div(x0, x0 - 2, rounding_mode='trunc'), torch.div(x0, x0.abs() + 1, rounding_mode='floor')", _LARGE),
        ("torch.div(x0.int(), -2, rounding_mode='trunc')", _LARGE % 2**31 - 2**30),
        ("torch.mean(x0, 1, dtype=torch.float32), x0.mean(0, True, dtype=torch.float32)", _LARGE % 5),
        ("torch.softmax(x0.half(), -1, dtype=torch.float32).log()", _SPREAD / 10),
        ("F.log_softmax(x0.half(), -1, dtype=torch.float32)", _SPREAD / 10),
        ("torch.expm1(x0), torch.log1p(x0), torch.special.expm1(x0)", _NEAR_ZERO),
        ("F.logsigmoid(x0)", _SPREAD),
        ("torch.arange(2**24 + 1, 2**24 + 1 + x0.shape[0] * 3, 3, dtype=torch.int32)", _SPREAD),
    ],
)
def test_onnx_equals_eager_for_unusual_values_and_arguments(lower_module: Any, text: str, values: torch.Tensor) -> None:
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "(1.0 - x0) * -1e9",
        "x0 * 70000",
        "x0 / 1e5",
        "x0 / 1e-8",
        "1e5 / x0",
        "x0 // 2.0**17",
        "x0 % 2.0**17",
        "torch.fmod(x0, 2.0**17)",
    ],
)
def test_a_number_beyond_the_range_of_float16_is_not_rounded(lower_module: Any, text: str) -> None:
    values = torch.tensor([[0.0, 1.0, 1e-3, 1000.0], [-2.0, -1.0, 3e4, -3e4]]).half()
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=0, equal_nan=True)


def test_a_product_with_a_number_that_float16_can_represent_stays_one_call(lower_module: Any, calls: Any) -> None:
    _, program = lower_module(module_from_text([], "x0 * 0.1", 1), (torch.rand(2, 4).half(),))
    assert calls(program) == ["mul.Tensor"]


def test_a_clamp_with_an_int_and_a_float_bound_is_converted(lower_module: Any) -> None:
    text = (
        "x0.clamp(0, 0.5), torch.clamp(x0, max=1, min=-0.5), (x0 * 0.01).half().clamp(-1, 0.25), x0.int().clamp(0, 1.5)"
    )
    for result, expected in _results(lower_module, text, (_SPREAD,), (_ROWS,)):
        assert torch.equal(result, expected)


def test_a_clamp_by_a_tensor_keeps_infinities(lower_module: Any) -> None:
    text = "torch.ops.aten.clamp_min.Tensor(x0, x1), torch.ops.aten.clamp_max.Tensor(x0, x1)"
    values = torch.tensor([[_INF, -_INF, 1.0], [0.0, -2.0, 3.0]])
    for bound in (0.5, _INF, -_INF):
        for result, expected in _results(lower_module, text, (values, torch.tensor(bound)), (_ROWS, {})):
            assert torch.equal(result, expected)


def test_no_negative_index_of_a_dynamic_axis_reaches_the_parser(lower_module: Any, calls: Any) -> None:
    """TensorRT's gather layer defines no result for a negative index. onnxruntime does, so its results hide this fault."""
    text = (
        "x0[-1], x0.select(0, -2), x0[x1], x0[x1, torch.arange(2)], x0[[-1, 0]], x0[[1, 0]], "
        "x0.index_put((x1,), x0[:2] * 0), x0[:, -1], x0.t().select(-1, -1), x0[torch.arange(0, 2, x1.shape[0])]"
    )
    inputs = torch.randn(4, 3), torch.tensor([-1, -4])
    for result, expected in _results(lower_module, text, inputs, (_ROWS, {})):
        assert torch.equal(result, expected)
    _, program = lower_module(module_from_text([], text, 2), inputs, "float32", (_ROWS, {}))
    negative = [node for node in program.graph.nodes if node.target is torch.ops.aten.select.int and node.args[2] == -1]
    assert [node.args[1] for node in negative] == [1]
    assert calls(program).count("where.self") == 4  # not for [1, 0], and not for the ranges


@pytest.mark.parametrize(
    "text", ["x0[torch.arange(x0.shape[0])]", "x0[x0.argmax(0)]", "x0[x0.argmax(0).view(1, -1).int()]"]
)
def test_an_index_that_is_never_negative_is_not_changed(lower_module: Any, calls: Any, text: str) -> None:
    _, program = lower_module(module_from_text([], text, 1), (torch.randn(4, 3),), "float32", (_ROWS,))
    assert "where.self" not in calls(program)


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_infinities_beside_a_diagonal_do_not_change_the_diagonal(lower_module: Any, offset: int) -> None:
    values = torch.full((4, 4, 3), _INF)
    for place in range(4):
        values[place, max(0, min(3, place + offset))] = place + 1.0
    shapes = None if offset else (_SQUARE,)  # with an offset, the diagonal of the smallest size may be empty
    calls = (f"torch.diagonal(x0, {offset}, {axes})" for axes in ("0, 1", "-2, -3", "2, 1"))
    for result, expected in _results(lower_module, ", ".join(calls), (values,), shapes):
        assert torch.equal(result, expected)


def test_a_diagonal_that_may_be_empty_stays_in_pytorch() -> None:
    """The first axis may have a size of 1 or 2. Then diagonal 2 is empty."""
    case = ModuleCase(module_from_text([], "torch.diagonal(x0, 2, 1, 0)", 1), [("float32", [(1, 3, 7), (2, 5, 11)])])
    built = build(case, engines=False)
    assert [part.kind for part in built.partitions.partitions] == ["torch"]
    assert not differences(case, built).differences


def test_a_model_can_write_to_a_diagonal(lower_module: Any) -> None:
    values = torch.randn(3, 2, 5, 4)
    statements = ["y, z, v = x0 * 1.0, x0 * 1.0, x0 * 1.0", "y.diagonal(0, 2, 3).fill_(-inf)"]
    statements += ["z.diagonal(1, -1, -2).add_(1.0)", "v.diagonal(-2, 2, 3).copy_(x0[..., 0, :3])"]
    traced, program = lower_module(module_from_text(statements, "y, z, v", 1), (values,), "float32", (_ROWS,))
    session = onnxruntime.InferenceSession(with_inline_weights(convert(program, 20).model, {}))
    for result, expected in zip(session.run(None, {"i0": values.numpy()}), traced.eager(), strict=True):
        assert torch.equal(torch.from_numpy(result), expected)


def test_a_write_to_the_diagonal_of_a_dynamic_matrix_equals_eager() -> None:
    module = module_from_text(["y = x0 + 0", "y.diagonal(dim1=1, dim2=2).fill_(-inf)"], "y", 1)
    case = ModuleCase(module, [("float32", [2, (1, 3, 7), (2, 5, 11)])])
    built = build(case, engines=False)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


@pytest.mark.parametrize(
    "text",
    [
        "torch.baddbmm(x0, x1, x1, beta=0, alpha=0.5)",
        "torch.addbmm(x0[0], x1, x1, beta=0)",
        "torch.addmm(x0[0], x1[0], x1[0], beta=0, alpha=-1)",
        "torch.addmv(x0[0, 0], x1[0], x1[0, 0], beta=0)",
    ],
)
def test_a_term_with_the_factor_zero_is_not_read(lower_module: Any, text: str) -> None:
    inputs = (torch.full((2, 4, 4), _NAN), torch.randn(2, 4, 4))
    for result, expected in _results(lower_module, text, inputs, None):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 2])
def test_factors_of_a_product_of_integers_are_cast_to_integers(alpha: float) -> None:
    calls = [
        f"torch.addmv(x0[0], x1, x0[0], beta=0.2, alpha={alpha})",
        f"torch.addbmm(x0, x2, x2, alpha={alpha})",
        f"torch.baddbmm(x2, x2, x2, beta=0, alpha={alpha})",
    ]
    inputs = [("int64", [4, 4]), ("int64", [4, 4]), ("int64", [(2, 3, 8), 4, 4])]
    case = ModuleCase(module_from_text([], ", ".join(calls), 3), inputs)
    assert not differences(case, build(case)).differences


def _run_partition(case: ModuleCase, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The result of the only partition of a model, in onnxruntime, which rounds after each node."""
    built = build(case, engines=False)
    (part,) = built.partitions.partitions
    read = built.store.get_bytes
    run = OnnxRuntime(lambda graph: read(built.onnx[graph]), Weights(built.weights, read))
    arguments = [inputs[int(source.removeprefix("input:"))] for source, _ in part.inputs]
    (result,) = run(part, arguments, Point(0, "min", (), 0))
    return result


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "text",
    [
        "torch.baddbmm(x0, x1, x1, alpha=-1 / 16)",
        "torch.baddbmm(x0, x1, x1, beta=0, alpha=1 / 16)",
        "torch.addbmm(x0[0], x1, x1, alpha=1 / 16)",
        "torch.addr(x0[0], x1[0, 0], x1[0, 0] * 4, alpha=1 / 16)",
    ],
)
def test_a_product_in_float16_is_scaled_before_it_overflows(text: str, dtype: str) -> None:
    """As in the attention of diffusers and of Bloom, the product of query and key is 90,000, and the scores are 5,625."""
    module = module_from_text([], text, 2)
    inputs = tuple(torch.full((1, 4, 4), number, dtype=getattr(torch, dtype)) for number in (0.0, 150.0))
    result = _run_partition(ModuleCase(module, [(dtype, (1, 4, 4))] * 2, precision="float16"), inputs)
    torch.testing.assert_close(result, module(*inputs), rtol=2e-3, atol=0)


class _ScaledByTensor(torch.nn.Module):
    """A model that multiplies and divides by a tensor without axes, such as ``nn.Parameter(torch.tensor(1.0))``."""

    def __init__(self, number: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.tensor(number, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * self.number, x / self.number])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", [-1e9, 1e-8, 3.3])
def test_a_tensor_without_axes_is_not_rounded_to_half_precision(half: str, number: float) -> None:
    """``(1 - mask) * number`` is 0 where the mask is 1. With -inf instead of -1e9, it would be NaN."""
    module = _ScaledByTensor(number, torch.float32)
    x = torch.tensor([0.0, 1e-3, 1.0, 60000.0]).to(getattr(torch, half))
    result = _run_partition(ModuleCase(module, [(half, (4,))]), (x,))
    assert torch.equal(result, module(x).detach())


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", [0.1, 0.3, 1 / 3, 0.6, 0.7, 2049, 257, 1e39])
def test_the_number_of_a_comparison_is_rounded_to_half_precision(half: str, number: float) -> None:
    signs = ("==", "!=", "<", "<=", ">", ">=")
    module = module_from_text([], f"torch.stack([{', '.join(f'x0 {sign} {number}' for sign in signs)}])", 1)
    x = torch.tensor([number, number * 1.01, number * 0.99]).to(getattr(torch, half))
    assert torch.equal(_run_partition(ModuleCase(module, [(half, (3,))]), (x,)), module(x))


def test_precision_does_not_round_the_number_of_a_comparison() -> None:
    """In float16, 1e-8 is 0, and no number is below 0 here. Then the division would give an infinity."""
    module = module_from_text([], "1 / torch.where(x0 < 1e-8, 1.0, x0)", 1)
    x = torch.tensor([0.0, 1.0, 2.0])
    assert torch.equal(_run_partition(ModuleCase(module, [("float32", (3,))], precision="float16"), (x,)), module(x))


@pytest.mark.parametrize(
    "view",
    [
        "x0.T",
        "x0[:, 1:]",
        "x0[1:]",
        "x0.t()[1:]",
        "x0[1:].reshape(2, 2, 2)",
        "x0.unsqueeze(0)",
        "(x0 + 1).transpose(0, 1)",
    ],
)
def test_as_strided_reads_the_memory_of_its_input(lower_module: Any, view: str) -> None:
    for text in (f"{view}.as_strided((2, 3), (1, 2))", f"{view}.as_strided((2, 2), (4, 3), 1)"):
        for result, expected in _results(lower_module, text, (_WIDE_MATRIX,), None):
            assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "piece",
    [
        "x0.split(1)[0]",
        "x0.split_with_sizes([1, 2])[0]",
        "x0.unbind(0)[0]",
        "x0.chunk(3)[0]",
        "torch.tensor_split(x0, 3)[0]",
        "x0[:1].as_strided((1, 4), (4, 1))",
    ],
)
def test_as_strided_reads_beyond_the_piece_of_a_tensor(lower_module: Any, piece: str) -> None:
    ((result, expected),) = _results(lower_module, f"{piece}.as_strided((3, 4), (4, 1))", (_WIDE_MATRIX,), None)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("value", ["x0", "x0.contiguous()", "x0.T", "torch.relu(x0)"])
def test_as_strided_of_a_transposed_input_reads_its_elements_in_order(lower_module: Any, value: str) -> None:
    """PyTorch runs the program of a Torch partition with the strides of the caller's tensor."""
    module = module_from_text([], f"{value}.as_strided((3, 2), (4, 1), 1)", 1)
    _, program = lower_module(module, (_WIDE_MATRIX,))
    transposed = _WIDE_MATRIX.T.contiguous().T
    assert torch.equal(program.exported.graph_module(transposed)[0], module(_WIDE_MATRIX))


@pytest.mark.parametrize(
    "text",
    [
        "torch.empty_like(x0.T).copy_(x0.T).as_strided((2, 3), (1, 2))",
        "F.dropout(x0[:1], 0.5, False).as_strided((3, 4), (4, 1))",
        "x0[:1].type_as(x0).as_strided((3, 4), (4, 1))",
        "x0.diagonal()[:1].as_strided((3, 4), (4, 1))",
    ],
)
def test_as_strided_of_an_unknown_memory_is_refused(lower_module: Any, text: str) -> None:
    with pytest.raises(SourceError, match="as_strided") as caught:
        _results(lower_module, text, (_WIDE_MATRIX,), None)
    assert caught.value.code == "strides"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.logcumsumexp(x0, 1)", "aten.logcumsumexp"),
        ("torch.special.erfcx(x0)", "aten.special_erfcx"),
        ("torch.erfc(x0)", "aten.erfc"),
        ("torch.signbit(x0)", "aten.signbit"),
        ("F.grid_sample(x0[None, None], torch.ones(1, 2, 2, 2), 'bicubic', 'border', True)", "aten.grid_sampler"),
        ("F.grid_sample(x0[None, None, None], torch.ones(1, 1, 2, 2, 3), align_corners=True)", "aten.grid_sampler"),
        ("torch.var(x0, dim=0, correction=2.5)", "prims.var"),
        ("torch.std_mean(x0, dim=1, correction=-1)[0]", "prims.var"),
        ("torch.var(x0.sum(), dim=0, correction=2) + x0", "prims.var"),
        ("F.pad(x0[None, None], (-3, 4, 0, 0), mode='replicate')", "aten.pad"),
        ("F.pad(x0[None], (-1, 2), mode='reflect')", "aten.pad"),
        ("torch.clamp(x0, max=float('nan'))", "aten.clamp"),
        ("torch.complex(x0, x0 * 0.0).angle()", "aten.angle"),
        ("torch.clamp(x0, float('nan'), 2.0)", "aten.clamp"),
        (
            "x0.scatter_reduce(1, torch.tensor([[0, 1, 1], [0, 0, 1]]), x0 - torch.inf, 'amax', include_self=False)",
            "aten.scatter_reduce",
        ),
        ("torch.ops.aten.elu(x0, 1.5, 1.0, 0.5)", "aten.elu"),
        ("x0 // 0.1", "aten.floor_divide"),
        ("x0 % (2 * torch.pi)", "aten.remainder"),
        ("x0 % x0.abs().amax()", "aten.remainder"),
        ("torch.fmod(x0, 2 * torch.pi)", "aten.fmod"),
        ("torch.div(x0, 0.1, rounding_mode='floor')", "aten.div"),
        ("F.cross_entropy(x0, torch.ones(2, dtype=torch.long), label_smoothing=0.1)", "aten.cross_entropy_loss"),
        (
            "F.interpolate(x0[None, None], (2, 2), mode='bilinear', align_corners=True, antialias=True)",
            "aten._upsample_bilinear2d_aa",
        ),
    ],
)
def test_wrong_translations_are_not_used(lower_module: Any, text: str, name: str) -> None:
    _, program = lower_module(module_from_text([], text, 1), (_SPREAD,), "float32")
    with pytest.raises(ConversionRefused, match=name):
        convert(program, 20)


@pytest.mark.parametrize(("scales", "is_refused"), [("1.7, 1.6", True), ("None, None", False), ("2.0, 1.5", False)])
def test_interpolation_by_another_scale_than_the_quotient_of_the_sizes_is_refused(
    lower_module: Any, scales: str, is_refused: bool
) -> None:
    text = f"torch.ops.aten.upsample_bilinear2d(x0, [8, 9], False, {scales})"
    if is_refused:
        with pytest.raises(ConversionRefused, match="upsample_bilinear2d"):
            _results(lower_module, text, (torch.randn(1, 2, 4, 6),), None)
    else:
        for result, expected in _results(lower_module, text, (torch.randn(1, 2, 4, 6),), None):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("scale", "is_refused"), [("0.7", True), ("2.0", False), ("1.5", False)])
def test_interpolation_is_refused_if_float32_would_round_a_dynamic_size_differently(
    lower_module: Any, scale: str, is_refused: bool
) -> None:
    shapes = ({2: 2 * Dim("height", min=2, max=8)},)
    text = f"F.interpolate(x0, scale_factor={scale}, mode='bilinear')"
    if is_refused:
        with pytest.raises(ConversionRefused, match=r"has no ONNX translation for aten\.upsample"):
            _results(lower_module, text, (torch.randn(1, 2, 10, 4),), shapes)
    else:
        for result, expected in _results(lower_module, text, (torch.randn(1, 2, 10, 4),), shapes):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("size", "widths"),
    [
        ("scale_factor=1.2", (4, 100)),
        ("scale_factor=1.3", (80, 120)),
        ("scale_factor=1.7", (4, 100)),
        ("scale_factor=2.0", (4, 100)),
        ("scale_factor=1.3, recompute_scale_factor=True", (80, 120)),
        ("size=54", (5, 60)),
        ("size=x0.shape[2] * 3", (4, 60)),
    ],
)
def test_interpolation_selects_the_elements_of_eager_at_every_size(
    lower_module: Any, mode: str, size: str, widths: tuple[int, int]
) -> None:
    """A product of an index and a scale can be 116.99999 in one type and 117 in another."""
    low, high = widths
    shapes = ({2: Dim("width", min=low, max=high)},)
    module = module_from_text([], f"F.interpolate(x0, {size}, mode='{mode}')", 1)
    _, program = lower_module(module, (torch.zeros(1, 1, low + 6),), "float32", shapes)
    session = onnxruntime.InferenceSession(with_inline_weights(convert(program, 20).model, {}))
    for width in range(low, high + 1):
        values = torch.arange(float(width)).reshape(1, 1, width)
        (result,) = session.run(None, {"i0": values.numpy()})
        assert torch.equal(torch.from_numpy(result), module(values)), width


@pytest.mark.parametrize("scales", ["1.2, 0.7", "1.7, 1.0", "None, None", "-1.0, 1.2"])
@pytest.mark.parametrize("operator", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_interpolation_with_sizes_and_other_scales_equals_eager(lower_module: Any, operator: str, scales: str) -> None:
    text = f"torch.ops.aten.{operator}(x0, [24, 13], {scales}), torch.ops.aten.{operator}(x0.half(), [9, 50], {scales})"
    for result, expected in _results(lower_module, text, (torch.arange(360.0).reshape(1, 1, 20, 18),), None):
        assert torch.equal(result, expected)


def test_positions_of_elements_are_computed_in_float32_in_a_model_of_float16(lower_module: Any) -> None:
    """float16 represents all whole numbers only up to 2048, and the result has 3398 elements (1999 * 1.7)."""
    module = module_from_text([], "F.interpolate(x0 * 1.0, scale_factor=1.7, mode='nearest-exact')", 1)
    example = torch.zeros(1, 1, 40)
    _, program = lower_module(module, (example,), "float16", ({2: Dim("width", min=4, max=2000)},))
    session = onnxruntime.InferenceSession(with_inline_weights(convert(program, 20).model, {}))
    values = torch.arange(1999.0).reshape(1, 1, 1999)
    (result,) = session.run(None, {"i0": values.numpy()})
    assert torch.equal(torch.from_numpy(result), module(values))


def test_interpolation_that_a_cpu_and_a_gpu_round_differently_stays_in_pytorch(lower_module: Any) -> None:
    for shapes in (None, ({2: Dim("width", min=2, max=8)},)):
        text = "F.interpolate(x0, size=82, mode='nearest-exact')"
        with pytest.raises(ConversionRefused, match="upsample_nearest_exact1d"):
            _results(lower_module, text, (torch.zeros(1, 1, 4),), shapes)


def test_only_interpolation_by_a_whole_number_stays_one_call(lower_module: Any, calls: Any) -> None:
    text = "F.interpolate(x0, scale_factor=2.0), F.interpolate(x0, size=x0.shape[2] * 4), F.interpolate(x0, size=20)"
    module = module_from_text([], text, 1)
    _, program = lower_module(module, (torch.randn(1, 2, 10),), "float32", ({2: Dim("width", min=4, max=8) * 2},))
    # the size 20 of the third call is not a multiple of every input size
    assert calls(program).count("upsample_nearest1d.vec") == 2


def test_log_softmax_is_not_the_logarithm_of_a_softmax(lower_module: Any, calls: Any) -> None:
    """TensorRT's parser writes LogSoftmax as the logarithm of a softmax. The smallest results of this softmax are 0."""
    text = (
        "F.log_softmax(x0, 1), torch.log_softmax(x0.half(), 0), F.log_softmax(x0.sum(), 0), F.log_softmax(x0, 1)[:, 0], "
        "F.log_softmax(x0.half().sum(), 0, dtype=torch.float32), F.log_softmax(x0.half().sum(), 0)"
    )
    values = torch.cat([_SPREAD, torch.tensor([[-_INF, 0.0, -3.0], [_INF, 0.0, 1.0]])])
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        torch.testing.assert_close(result, expected, equal_nan=True)
    names = calls(lower_module(module_from_text([], text, 1), (values,), "float16", (_ROWS,))[1])
    assert not any("softmax" in name for name in names)


@pytest.mark.parametrize(
    "number",
    [
        "x0.shape[1] * 1.7",
        "0.5 - x0.shape[1]",
        "x0.shape[1] ** 0.5",
        "x0.shape[1] + 0.25",
        "x0.shape[1] / 3",
        "-(-x0.shape[1] // 2)",
        "(3 - x0.shape[1]) // 2",
        "x0.shape[1] // 2",
        "(3 - x0.shape[1]) % 4",
    ],
)
def test_numbers_computed_from_sizes_equal_those_of_python(lower_module: Any, number: str) -> None:
    shapes = ({0: Dim("rows", min=2, max=8), 1: Dim("columns", min=2, max=8)},)
    for result, expected in _results(lower_module, f"x0 * ({number})", (torch.ones(2, 5),), shapes):
        torch.testing.assert_close(result, expected)


def test_elu_without_an_input_scale_is_converted(lower_module: Any) -> None:
    for result, expected in _results(lower_module, "F.elu(x0, 1.5), F.celu(x0, 2.0)", (_SPREAD,), (_ROWS,)):
        torch.testing.assert_close(result, expected)


def test_a_division_of_floats_stays_one_call(lower_module: Any, calls: Any) -> None:
    module = module_from_text([], "torch.div(x0, 0.3, rounding_mode='trunc'), F.softmax(x0, -1)", 1)
    assert calls(lower_module(module, (_SPREAD,), "float32", (_ROWS,))[1]) == ["div.Tensor_mode", "softmax.int"]


def _nodes(lower_module: Any, text: str, inputs: tuple[torch.Tensor, ...], shapes: Any) -> list[onnx.NodeProto]:
    """The ONNX nodes of an expression."""
    _, program = lower_module(module_from_text([], text, len(inputs)), inputs, "float32", shapes)
    return list(onnx.load_from_string(convert(program, 20).model).graph.node)


def _integer_attribute(node: onnx.NodeProto, attribute: str) -> int:
    (value,) = (entry.i for entry in node.attribute if entry.name == attribute)
    return int(value)


def test_divisions_of_integers_have_no_mod_that_rounds_down(lower_module: Any) -> None:
    """With TensorRT 8.6 on an H200, such a Mod gave wrong results in a test with integers up to 2^30."""
    text = "x0 // 3, x0 // -x1, x0 % -7, x0 % x1, torch.fmod(x0, -5), torch.remainder(7, x1), x0.to(torch.uint8) % 3"
    dividends = torch.tensor([[2**40 + 7, -(2**40) - 7, 2**25 + 1], [-7, 7, -6], [0, 6, -1]])
    inputs = dividends, torch.tensor([[3, -3, 5], [-7, 7, 3], [1, -2, -1]])
    for result, expected in _results(lower_module, text, inputs, (_ROWS, _ROWS)):
        assert result.dtype is expected.dtype and torch.equal(result, expected)
    divisions = [node for node in _nodes(lower_module, text, inputs, (_ROWS, _ROWS)) if node.op_type == "Mod"]
    assert divisions and all(_integer_attribute(node, "fmod") == 1 for node in divisions)


@pytest.mark.parametrize(("padding", "height"), [("(1, 0)", 9), ("0", 8), ("1", 9)])
def test_an_average_whose_windows_may_end_outside_does_not_count_padding(
    lower_module: Any, padding: str, height: int
) -> None:
    """With TensorRT 8.6 on an H200, averages that count padding were wrong for such windows. So the input is padded."""
    text = f"F.avg_pool2d(x0, (2, 3), (3, 2), {padding}, ceil_mode=True, count_include_pad=True)"
    image = torch.randn(3, 2, height, 8) + 1
    ((result, expected),) = _results(lower_module, text, (image,), (_ROWS,))
    torch.testing.assert_close(result, expected)
    (pool,) = (node for node in _nodes(lower_module, text, (image,), (_ROWS,)) if node.op_type == "AveragePool")
    assert _integer_attribute(pool, "count_include_pad") == 0


@pytest.mark.parametrize(
    "call",
    [
        "F.max_pool2d(x0, 2, 2, 1, ceil_mode=True)",
        "F.max_pool2d(x0, 1, 2, ceil_mode=True)[:, :, :4]",
        "F.max_pool2d(x0, 2, 2, 1, ceil_mode=True, return_indices=True)[0]",
        "F.avg_pool2d(x0, 2, 3, ceil_mode=True, count_include_pad=False)",
        "F.avg_pool2d(x0, 2, 2, 1, ceil_mode=True)",
    ],
)
def test_a_pooling_has_no_ceil_mode_if_pytorch_leaves_out_the_last_window(lower_module: Any, call: str) -> None:
    """TensorRT computes this window: the first pooling would give 6 × 6 elements for 9 × 9, not 5 × 5."""
    side = 8 if "x0, 1, 2" in call else 9
    image = torch.randn(2, 3, side, side)
    ((result, expected),) = _results(lower_module, f"{call}.mean((2, 3))", (image,), (_ROWS,))
    torch.testing.assert_close(result, expected)
    (pool,) = (node for node in _nodes(lower_module, call, (image,), (_ROWS,)) if node.op_type.endswith("Pool"))
    assert _integer_attribute(pool, "ceil_mode") == 0


@pytest.mark.parametrize(
    ("call", "is_refused"),
    [
        ("F.max_pool2d(x0, 2, 2, 1, ceil_mode=True)", True),
        ("F.max_pool2d(x0, (2, 3), 2, 1, ceil_mode=True)", True),
        ("F.avg_pool2d(x0, (2, 1), (2, 3), (1, 0), ceil_mode=True, count_include_pad=False)", True),
        ("F.max_pool2d(x0, 3, 2, 1, ceil_mode=True)", False),
        ("F.max_pool2d(x0, 2, 2, ceil_mode=True)", False),
        ("F.max_pool2d(x0[0], 2, 2, ceil_mode=True)", False),
    ],
)
def test_a_pooling_of_a_dynamic_axis_is_refused_if_pytorch_leaves_out_a_window(
    lower_module: Any, call: str, is_refused: bool
) -> None:
    image, shapes = torch.randn(2, 3, 9, 8), ({2: 2 * Dim("half", min=3, max=64) - 1},)
    if is_refused:
        with pytest.raises(ConversionRefused, match="has no ONNX translation for aten"):
            _results(lower_module, call, (image,), shapes)
    else:
        for result, expected in _results(lower_module, call, (image,), shapes):
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("axes", "padding", "has_no_bias"), [(2, 0, True), (1, 0, True), (3, 0, True), (2, 1, False)])
def test_no_transposed_convolution_adds_a_bias_before_the_parser_appends_elements(
    lower_module: Any, axes: int, padding: int, has_no_bias: bool
) -> None:
    """The parser appends `output_padding` - `padding` elements, which are 0. In PyTorch, they are equal to the bias."""
    call = f"F.conv_transpose{axes}d(x0, x1, x2, 2, {padding}, 1)"
    inputs = torch.randn(2, 4, *[5] * axes), torch.randn(4, 3, *[2] * axes), torch.randn(3) + 5
    ((result, expected),) = _results(lower_module, call, inputs, None)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    (node,) = (node for node in _nodes(lower_module, call, inputs, None) if node.op_type == "ConvTranspose")
    assert (len(node.input) == 2) is has_no_bias


def test_a_transposed_convolution_with_a_dynamic_number_of_channels_equals_eager() -> None:
    body = "F.conv_transpose1d(x0, x1.transpose(0, 1), x1.mean((1, 2)), 3, 1, 2)"
    case = ModuleCase(module_from_text([], body, 2), [("float32", [2, 4, 5]), ("float32", [(2, 3, 6), 4, 2])])
    assert not differences(case, build(case)).differences


@pytest.mark.parametrize(
    "text",
    [
        "x0.clamp(max=2.5), x0.clamp(min=-1), x0.clamp(None, -3.0), x0.clamp(2.0)",
        "x0.clamp_min(-1.5), x0.clamp_max(1), torch.clip(x0, max=0.5), x0.clip(min=0.0)",
        "x0.half().clamp(max=2.5), x0.half().clamp_min(-1.5), x0.clamp(-1, 1), (x0 * 4).nan_to_num().int().clamp(min=-3)",
    ],
)
def test_a_clamp_with_one_bound_keeps_infinities(lower_module: Any, text: str) -> None:
    values = torch.tensor([[_INF, -_INF, 3e38], [-3e38, 0.25, -2.0]])
    if "nan_to_num" in text:
        values = values.clamp(-60000, 60000)
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        assert result.dtype is expected.dtype and torch.equal(result, expected)


@pytest.mark.parametrize(
    ("text", "largest", "kinds"),
    [
        ("x0.sort()[0]", 3840, ["tensorrt"]),
        ("x0.sort()[0]", 3841, ["torch"]),
        ("x0.argsort(1)", 8400, ["torch"]),
        ("x0.topk(x0.shape[1] // 2)[0]", 3840 * 2, ["tensorrt"]),
        ("x0.topk(x0.shape[1] // 2)[0]", 3840 * 2 + 2, ["torch"]),
        ("x0.topk(300)[0]", 25200, ["tensorrt"]),
    ],
)
def test_more_elements_than_topk_returns_are_sorted_in_pytorch(text: str, largest: int, kinds: list[str]) -> None:
    """TensorRT's TopK returns at most 3840 elements. Its builder refuses a larger number only if the number is static."""
    case = ModuleCase(module_from_text([], text, 1), [("float32", [2, (300, 2000, largest)])])
    built = build(case, engines=False)
    assert [part.kind for part in built.partitions.partitions] == kinds


@pytest.mark.parametrize(
    ("scale", "operator"), [("2.0", "Resize"), ("0.5", "Resize"), ("1.5", "Gather"), ("1.7", "Gather")]
)
def test_resize_is_used_where_the_quotient_of_the_sizes_selects_the_same_elements(
    lower_module: Any, scale: str, operator: str
) -> None:
    """With TensorRT 8.6 on an H200, Resize by 1.7 was wrong."""
    text, line = f"F.interpolate(x0, scale_factor={scale}, mode='nearest')", torch.randn(2, 3, 7)
    shapes = ({2: Dim("length", min=4, max=64)},)
    for result, expected in _results(lower_module, text, (line,), shapes):
        assert torch.equal(result, expected)
    operators = {node.op_type for node in _nodes(lower_module, text, (line,), shapes)}
    assert operator in operators and len(operators & {"Resize", "Gather"}) == 1


def test_a_partition_may_begin_with_a_size_that_is_rounded() -> None:
    text = "torch.erfc(F.interpolate(x0, scale_factor=1.7, mode='nearest')) * 2.0"
    case = ModuleCase(module_from_text([], text, 1), [("float32", [2, 3, (4, 7, 11)])])
    built = build(case, engines=False)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt", "torch", "tensorrt"]
    assert not differences(case, built).differences


@pytest.mark.parametrize(
    "text",
    [
        "x0.logsumexp(1), x0.logsumexp((0, 1)), x0.logsumexp(-1, True), torch.logsumexp(x0, (0, 1), keepdim=True)",
        "(x0 / 8).half().logsumexp(1).float(), (x0 * 0.5).logsumexp(0), torch.special.logsumexp(x0, 1)",
        "x0[0, 0].logsumexp(0)",
    ],
)
def test_a_logsumexp_subtracts_the_maximum(lower_module: Any, text: str) -> None:
    """TensorRT 8.6 does not: on an H200, the logsumexp of numbers above 88 was infinite."""
    values = torch.tensor([[-200.0, 0.0, 300.0], [-_INF, -_INF, -_INF], [_INF, 1.0, -_INF], [_NAN, 1.0, 2.0]])
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        torch.testing.assert_close(result, expected, rtol=1e-3 if "half" in text else 2e-6, atol=0, equal_nan=True)
    assert all(node.op_type != "ReduceLogSumExp" for node in _nodes(lower_module, text, (values,), (_ROWS,)))


def test_a_log_sum_of_no_elements_is_converted(lower_module: Any) -> None:
    for result, expected in _results(lower_module, "x0[:, :0].logsumexp(1)", (_WIDE_MATRIX,), None):
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "text",
    [
        "*x0.topk(3), *x0.topk(3, largest=False), x0.topk(2, 0)[1]",
        "*x0.sort(), *x0.sort(0, descending=True), x0.argsort(1)",
        "x0.argmax(1), x0.argmin(0), *x0.max(1), *x0.min(0, True), x0.argmax(), x0.max(1)[1], x0.min(1)[0]",
        "*x0.half().topk(3), x0.half().argmax(1), *x0.half().min(1)",
    ],
)
def test_infinities_are_searched_as_finite_numbers(lower_module: Any, text: str) -> None:
    """On an H200, TensorRT 8.6 gave the index -1 to -inf in searches for large numbers, and to inf for small ones."""
    # no row and no column has equal numbers
    values = torch.tensor([[-_INF, 1.0, 3.0, 2.0], [4.0, _INF, 0.0, -_INF], [5.0, 6.0, -_INF, _INF]])
    for result, expected in _results(lower_module, text, (values,), (_ROWS,)):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    nodes = _nodes(lower_module, text, (values,), (_ROWS,))
    producers = {output: node.op_type for node in nodes for output in node.output}
    searches = [node for node in nodes if node.op_type in ("TopK", "ArgMax", "ArgMin")]
    assert searches and {producers[node.input[0]] for node in searches} <= {"Max", "Min", "Reshape"}


def test_finite_results_are_searched_as_they_are(lower_module: Any) -> None:
    text = "*x0.softmax(1).topk(2), x0.sigmoid().argmax(1), x0.topk(2)[0], (x0 * 4).long().argmax(1)"
    nodes = _nodes(lower_module, text, (_WIDE_MATRIX,), None)
    assert not {"Max", "Min", "GatherElements"} & {node.op_type for node in nodes}


def test_a_clamp_gives_the_upper_bound_if_the_bounds_are_swapped(lower_module: Any) -> None:
    """TensorRT 8.6 gave the lower bound."""
    text = (
        "x0.clamp(5, 2), x0.clamp(0.5, -0.5), x0.long().clamp(5, 2), x0.half().clamp(1.0, -1), torch.clip(x0, 3, 1.5)"
    )
    for result, expected in _results(lower_module, text, (_WIDE_MATRIX,), None):
        assert torch.equal(result, expected)
    _, program = lower_module(module_from_text([], text, 1), (_WIDE_MATRIX,), "float32")
    clamps = [node for node in program.graph.nodes if "clamp" in str(node.target)]
    assert len(clamps) == 5 and all(node.args[1] == node.args[2] for node in clamps)
