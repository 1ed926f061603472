"""The operators that Torch-TensorRT has converters for, with one or more calls of each.

The list of operators is that of Torch-TensorRT's ``dynamo/conversion/aten_ops_converters.py``. In a call, `op` is the
operator, and ``x0``, ``x1``, … are the inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.pipeline import Axis

#: The dtype and the axes of an input.
Spec = tuple[str, Sequence[Axis]]

#: A dynamic batch: min, opt and max. The names B, X, N and K are short, because the tables below use them often.
B: Axis = (2, 3, 8)
#: Inputs of two axes: X of floats, N of integers, K of booleans.
X: Spec = ("float32", (B, 6))
N: Spec = ("int64", (B, 6))
K: Spec = ("bool", (B, 6))
#: Inputs of more axes.
LINE: Spec = ("float32", (B, 4, 12))
IMAGE: Spec = ("float32", (B, 4, 8, 12))
VOLUME: Spec = ("float32", (B, 4, 8, 8, 8))
HEADS: Spec = ("float32", (B, 2, 5, 8))


@dataclass(frozen=True)
class Row:
    """A call of an operator, and its inputs.

    `operator` is the operator's name in Torch-TensorRT's list. `note` says how the call differs from other calls of the
    operator.
    """

    operator: str
    call: str
    inputs: tuple[Spec, ...] = (X,)
    note: str = ""

    @property
    def function(self) -> Any:
        space, name = self.operator.split(".", 1)
        if space == "operator":
            return getattr(operator, name)
        if self.operator.startswith("torch."):
            return getattr(torch, name)
        function = getattr(torch.ops, space)
        for part in name.split("."):
            function = getattr(function, part)
        return function


def _rows(*lines: tuple[Any, ...]) -> Iterator[Row]:
    """Rows from tuples: the operator, the call, the inputs (by default X), and possibly a note."""
    for name, call, *rest in lines:
        note = rest.pop() if rest and isinstance(rest[-1], str) else ""
        yield Row(name, call, tuple(rest) or (X,), note)


def _unary(names: str, argument: str = "x0", *inputs: Spec, note: str = "") -> Iterator[Row]:
    """A row for each operator: its default overload, called with `argument`."""
    for name in names.split():
        yield Row(f"aten.{name}.default", f"op({argument})", inputs or (X,), note)


def _pairs(names: str, overloads: str = "Tensor Scalar") -> Iterator[Row]:
    """A row for each overload of each operator, called with two tensors or with a tensor and a number."""
    for name in names.split():
        for overload in overloads.split():
            takes_tensor = overload.startswith(("Tensor", "default")) and overload != "Tensor_Scalar"
            yield Row(
                f"aten.{name}.{overload}",
                "op(x0, x1)" if takes_tensor else "op(x0, 0.5)",
                (X, X) if takes_tensor else (X,),
            )


ELEMENTS: tuple[Row, ...] = (
    *_unary("abs asinh atan ceil cos cosh elu erf exp expm1 floor gelu hardsigmoid hardtanh isinf isnan leaky_relu"),
    *_unary("neg reciprocal relu round sigmoid sign sin sinh softplus tan tanh trunc clone logical_not"),
    *_unary("acos asin atanh", "x0.sin() * 0.9"),
    *_unary("acosh", "x0.abs() + 1"),
    *_unary("log log10 log1p log2 sqrt rsqrt", "x0.abs() + 0.1"),
    *_unary("expm1 log1p", "x0 * 1e-9", note="near 0"),
    *_unary("erfc special_erfcx"),
    *_unary("ceil floor round trunc", "x0", N, note="of integers"),
    *_unary("abs neg sign", "x0", N, note="of integers"),
    *_unary("bitwise_not", "x0", K),
    *_unary("bitwise_not", "x0", N, note="of integers"),
    *_rows(
        ("aten.glu.default", "op(x0, -1)"),
        ("aten._softmax.default", "op(x0, -1, False)"),
        ("aten.softmax.int", "op(x0, -1)"),
        ("aten.softmax.int", "op(x0.half() * 20, -1, dtype=torch.float32).log()", "of float16, to float32"),
        ("aten.log_softmax.int", "op(x0 * 100, -1)"),
        ("aten.log_sigmoid.default", "op(x0 * 100)"),
        ("aten._prelu_kernel.default", "op(x0, x0[:1].sigmoid())"),
        ("aten.native_dropout.default", "op(x0, 0.5, False)[0]"),
        ("aten.clamp.default", "op(x0, -0.5, 0.5)"),
        ("aten.clamp.Tensor", "op(x0, x1, x1 + 1)", X, X),
        ("aten.clip.default", "op(x0, -0.5, 0.5)"),
        ("aten.clip.Tensor", "op(x0, x1, x1 + 1)", X, X),
        ("aten.clamp.default", "op(x0, -2, 2)", N, "of integers"),
        ("aten.where.self", "op(x0 > 0, x0, x1)", X, X),
        ("aten._to_copy.default", "op(x0, dtype=torch.float16)"),
        ("aten._to_copy.default", "op(x0, dtype=torch.int64)", "to integers"),
        ("aten._to_copy.default", "op(x0, dtype=torch.float64)", "to float64"),
        ("aten.copy.default", "op(x0, x1)", X, X),
    ),
)

PAIRS: tuple[Row, ...] = (
    *_pairs("add sub mul div eq ne gt ge lt le"),
    *_pairs("fmod remainder"),
    *_rows(
        ("aten.fmod.Scalar", "op(x0, 2.0)", "by a power of two"),
        ("aten.remainder.Scalar", "op(x0, 1.0)", "by a power of two"),
        ("aten.floor_divide.default", "op(x0, 16)", "by a power of two"),
    ),
    *_pairs("maximum minimum logical_and logical_or logical_xor", "default"),
    *_rows(
        ("aten.add.Tensor", "op(x0, x1, alpha=2)", X, X, "with alpha"),
        ("aten.div.Tensor_mode", "op(x0, x1, rounding_mode='floor')", X, X),
        ("aten.div.Scalar_mode", "op(x0, 0.5, rounding_mode='trunc')"),
        ("aten.div.Tensor_mode", "op(x0, x1 * x1 + 1, rounding_mode='floor')", N, N, "of integers"),
        ("aten.div.Tensor_mode", "op(x0, x1 * x1 + 1, rounding_mode='trunc')", N, N, "of integers, trunc"),
        ("aten.div.Tensor_mode", "op(x0 * 2**40 + 7, x1 - 2, rounding_mode='trunc')", N, N, "of large integers, trunc"),
        ("aten.div.Scalar_mode", "op(x0 * 2**40 + 7, -3, rounding_mode='floor')", N, "of large integers"),
        ("prims.div.default", "op(x0, x1)", X, X),
        ("aten.floor_divide.default", "op(x0, x1)", X, X),
        ("aten.floor_divide.Scalar", "op(x0, 0.5)"),
        ("aten.floor_divide.default", "op(x0, x1 * x1 + 1)", N, N, "of integers"),
        ("aten.fmod.Tensor", "op(x0, x1 * x1 + 1)", N, N, "of integers"),
        ("aten.remainder.Tensor", "op(x0, x1 * x1 + 1)", N, N, "of integers"),
        ("aten.pow.Tensor_Tensor", "op(x0.abs() + 0.1, x1)", X, X),
        ("aten.pow.Scalar", "op(2.0, x0)"),
        ("aten.pow.Tensor_Scalar", "op(x0, 3)"),
        ("aten.pow.Tensor_Scalar", "op(x0, 2)", N, "of integers"),
        ("aten.atan2.default", "op(x0, x1)", X, X),
        ("aten.atan2.out", "op(x0, x1, out=torch.empty_like(x0))", X, X),
        ("aten.bitwise_and.Tensor", "op(x0, x1)", K, K),
        ("aten.bitwise_and.Scalar", "op(x0, True)", K),
        ("aten.bitwise_and.Scalar_Tensor", "op(True, x0)", K),
        ("aten.bitwise_or.Tensor", "op(x0, x1)", K, K),
        ("aten.bitwise_or.Scalar", "op(x0, True)", K),
        ("aten.bitwise_or.Scalar_Tensor", "op(False, x0)", K),
        ("aten.bitwise_xor.Tensor", "op(x0, x1)", K, K),
        ("aten.bitwise_xor.Scalar", "op(x0, True)", K),
        ("aten.bitwise_xor.Scalar_Tensor", "op(True, x0)", K),
        ("aten.bitwise_and.Tensor", "op(x0, x1)", N, N, "of integers"),
        ("operator.add", "x0.new_zeros(op(x0.shape[0], 1))"),
        ("operator.sub", "x0.new_zeros(op(x0.shape[0] * 9, 1))"),
        ("operator.mul", "x0.new_zeros(op(x0.shape[0], 2))"),
        ("operator.floordiv", "x0.new_zeros(op(x0.shape[0] * 9, 2))"),
        ("operator.mod", "x0.new_zeros(op(x0.shape[0], 20) + 9)"),
        ("operator.pow", "x0.new_zeros(op(x0.shape[0], 2))"),
        ("operator.neg", "x0.new_zeros(op(x0.shape[0]) + 99)"),
        ("operator.truediv", "x0 * op(x0.shape[0], 2)"),
        ("operator.eq", "x0 * op(x0.shape[0], 3)"),
        ("torch.sym_min", "x0.new_zeros(op(x0.shape[0], 4))"),
        ("torch.sym_not", "x0 * op(x0.shape[0] > 3)"),
    ),
)

REDUCTIONS: tuple[Row, ...] = (
    *_unary("sum mean prod max min any", "x0"),
    *_unary("amax amin", "x0, [1]"),
    *_unary("argmax argmin", "x0, 1"),
    *_unary("argmax argmin", "x0, 1", N, note="of integers"),
    *_unary("argmax argmin", "x0", N, note="of integers, of all axes"),
    *_unary("argmax argmin", "x0, 1", ("int32", (B, 6)), note="of int32"),
    *_rows(
        ("aten.sum.dim_IntList", "op(x0, [1])"),
        ("aten.sum.dim_IntList", "op(x0, [1])", N, "of integers"),
        ("prims.sum.default", "op(x0, [1])"),
        ("aten.mean.dim", "op(x0, [1])"),
        ("aten.mean.dim", "op(x0, [1], dtype=torch.float32)", N, "of integers, to float32"),
        ("aten.prod.dim_int", "op(x0, 1)"),
        ("aten.max.dim", "op(x0, 1)[0]"),
        ("aten.min.dim", "op(x0, 1)[0]"),
        ("aten.max.dim", "op(x0, 1)", "with indices"),
        ("aten.max.dim", "op(x0, 1)", N, "of integers, with indices"),
        ("aten.any.dim", "op(x0 > 0, 1)"),
        ("aten.any.dims", "op(x0 > 0, [1])"),
        ("aten.cumsum.default", "op(x0, 1)"),
        ("aten.logcumsumexp.default", "op(x0 * 100, 1)"),
        ("aten.cumsum.default", "op(x0, 1)", N, "of integers"),
        ("aten.topk.default", "op(x0, 3)"),
        ("aten.sort.default", "op(x0)"),
        ("aten.topk.default", "op(x0.clamp(-9, 9) + torch.arange(6) * 100, 3)", N, "of integers"),
        ("aten.sort.default", "op(x0)[0]", N, "of integers"),
    ),
)

NORMS: tuple[Row, ...] = tuple(
    _rows(
        (
            "aten.batch_norm.default",
            "op(x0, None, None, x0[0, :, 0, 0] * 0, x0[0, :, 0, 0] * 0 + 2, False, 0.1, 1e-5, True)",
            IMAGE,
        ),
        (
            "aten.native_batch_norm.default",
            "op(x0, None, None, x0[0, :, 0, 0] * 0, x0[0, :, 0, 0] * 0 + 2, False, 0.1, 1e-5)[0]",
            IMAGE,
        ),
        (
            "aten._native_batch_norm_legit_no_training.default",
            "op(x0, None, None, x0[0, :, 0, 0] * 0, x0[0, :, 0, 0] * 0 + 2, 0.1, 1e-5)[0]",
            IMAGE,
        ),
        ("aten._native_batch_norm_legit.no_stats", "op(x0, None, None, True, 0.1, 1e-5)[0]", IMAGE),
        ("aten.native_layer_norm.default", "op(x0, [6], None, None, 1e-5)[0]"),
        ("aten.layer_norm.default", "op(x0, [6])"),
        ("aten.native_group_norm.default", "op(x0, None, None, x0.shape[0], 4, 96, 2, 1e-5)[0]", IMAGE),
        ("aten.group_norm.default", "op(x0, 2)", IMAGE),
        ("aten.cdist.default", "op(x0, x1)", LINE, LINE),
        ("aten._cdist_forward.default", "op(x0, x1, 2.0, None)", LINE, LINE),
        ("aten._cdist_forward.default", "op(x0, x1, 1.0, None)", LINE, LINE, "p = 1"),
        ("aten._cdist_forward.default", "op(x0, x1, 0.0, None)", LINE, LINE, "p = 0"),
        ("aten._cdist_forward.default", "op(x0, x1, 3.0, None)", LINE, LINE, "p = 3"),
        ("aten._cdist_forward.default", "op(x0, x1, float('inf'), None)", LINE, LINE, "p = ∞"),
        ("aten._pdist_forward.default", "op(x0, 2.0)", ("float32", (5, 6))),
        ("aten._pdist_forward.default", "op(x0, 1.0)", ("float32", (5, 6)), "p = 1"),
        ("aten._pdist_forward.default", "op(x0, 0.0)", ("float32", (5, 6)), "p = 0"),
        ("aten._pdist_forward.default", "op(x0, float('inf'))", ("float32", (5, 6)), "p = ∞"),
        ("aten._pdist_forward.default", "op(x0, 2.0)", "of a dynamic number of rows"),
    )
)

PRODUCTS: tuple[Row, ...] = tuple(
    _rows(
        ("aten.matmul.default", "op(x0, x0.transpose(1, 2))", LINE),
        ("aten.dot.default", "op(x0[0], x0[1])"),
        ("aten.mm.default", "op(x0, x0.T)"),
        ("aten.mv.default", "op(x0, x0[0])"),
        ("aten.bmm.default", "op(x0, x0.transpose(1, 2))", LINE),
        ("aten.addmm.default", "op(x0[0, :1], x0, x0.T, beta=2, alpha=3)"),
        ("aten.linear.default", "op(x0, x1)", X, ("float32", (4, 6))),
        ("aten.linalg_cross.default", "op(x0[:, :3], x0[:, 3:])"),
        (
            "aten.convolution.default",
            "op(x0, x1, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
            IMAGE,
            ("float32", (2, 4, 3, 3)),
        ),
        (
            "aten.convolution.default",
            "op(x0, x1, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)",
            IMAGE,
            ("float32", (4, 2, 3, 3)),
            "transposed",
        ),
        ("aten.embedding.default", "op(x1, x0.clamp(0, 3))", N, ("float32", (4, 6))),
        ("aten.embedding_bag.default", "op(x1, x0[0].clamp(0, 3), torch.tensor([0, 2]))[0]", N, ("float32", (4, 6))),
        ("aten._embedding_bag.default", "op(x1, x0[0].clamp(0, 3), torch.tensor([0, 2]))[0]", N, ("float32", (4, 6))),
        ("aten.scaled_dot_product_attention.default", "op(x0, x1, x1)", HEADS, HEADS),
        ("aten.scaled_dot_product_attention.default", "op(x0, x1, x1, scale=-0.3)", HEADS, HEADS, "a negative scale"),
        (
            "aten.scaled_dot_product_attention.default",
            "op(x0.half(), x1.half(), x1.half(), x0[..., :5] > 1)",
            HEADS,
            HEADS,
            "of float16, rows that are masked entirely",
        ),
        ("aten.baddbmm.default", "op(x0[:, :1, :1] / 0, x0, x0.mT, beta=0)", LINE, "beta = 0"),
        ("aten._scaled_dot_product_flash_attention.default", "op(x0, x1, x1)[0]", HEADS, HEADS),
        ("aten._scaled_dot_product_efficient_attention.default", "op(x0, x1, x1, None, False)[0]", HEADS, HEADS),
        ("aten._scaled_dot_product_cudnn_attention.default", "op(x0, x1, x1, None, False)[0]", HEADS, HEADS),
    )
)

POOLS: tuple[Row, ...] = tuple(
    _rows(
        ("aten.avg_pool1d.default", "op(x0, [2])", LINE),
        ("aten.avg_pool2d.default", "op(x0, [2, 3])", IMAGE),
        ("aten.avg_pool3d.default", "op(x0, [2, 2, 2])", VOLUME),
        ("aten.avg_pool2d.default", "op(x0, [3, 5], [2, 2], [1, 1], True)", IMAGE, "ceil_mode"),
        ("aten.avg_pool2d.default", "op(x0, [2, 3], [], [0, 0], False, True, 5)", IMAGE, "divisor_override"),
        ("aten.max_pool1d.default", "op(x0, [2])", LINE),
        ("aten.max_pool2d.default", "op(x0, [2, 3])", IMAGE),
        ("aten.max_pool3d.default", "op(x0, [2, 2, 2])", VOLUME),
        ("aten.adaptive_avg_pool1d.default", "op(x0, [5])", LINE),
        ("aten.adaptive_avg_pool2d.default", "op(x0, [3, 5])", IMAGE),
        ("aten._adaptive_avg_pool2d.default", "op(x0, [3, 4])", IMAGE),
        ("aten.adaptive_avg_pool3d.default", "op(x0, [3, 2, 3])", VOLUME),
        ("aten._adaptive_avg_pool3d.default", "op(x0, [3, 2, 3])", VOLUME),
        ("aten.upsample_nearest1d.vec", "op(x0, None, [2.0])", LINE),
        ("aten.upsample_nearest2d.vec", "op(x0, None, [2.0, 2.0])", IMAGE),
        ("aten.upsample_nearest3d.vec", "op(x0, None, [2.0, 2.0, 2.0])", VOLUME),
        ("aten.upsample_nearest1d.vec", "op(x0, None, [1.2])", ("float32", (2, 3, (15, 20, 40))), "a scale of 1.2"),
        (
            "aten._upsample_nearest_exact1d.vec",
            "op(x0, None, [1.7])",
            ("float32", (2, 3, (4, 9, 40))),
            "a scale of 1.7",
        ),
        ("aten._upsample_nearest_exact1d.vec", "op(x0, [82], None)", ("float32", (2, 3, 4)), "from 4 to 82 elements"),
        ("aten._upsample_nearest_exact2d.vec", "op(x0, [9, 20], None)", IMAGE),
        ("aten.upsample_linear1d.vec", "op(x0, None, False, [2.0])", LINE),
        ("aten.upsample_bilinear2d.vec", "op(x0, None, False, [2.0, 2.0])", IMAGE),
        (
            "aten.upsample_bilinear2d.default",
            "op(x0, [13, 20], False, 1.7, 1.7)",
            IMAGE,
            "another scale than the sizes",
        ),
        ("aten.upsample_bilinear2d.vec", "op(x0, None, False, [1.7, 1.7])", IMAGE, "a scale of 1.7"),
        ("aten.upsample_trilinear3d.vec", "op(x0, None, False, [2.0, 2.0, 2.0])", VOLUME),
        ("aten.upsample_bicubic2d.vec", "op(x0, None, False, [2.0, 2.0])", IMAGE),
        ("aten.grid_sampler.default", "op(x0, x0[:, :2].permute(0, 2, 3, 1).sin(), 0, 0, False)", IMAGE),
        ("aten.grid_sampler_2d.default", "op(x0, x0[:, :2].permute(0, 2, 3, 1).sin(), 0, 0, False)", IMAGE),
        ("aten.constant_pad_nd.default", "op(x0, [1, 2], 0.5)"),
        ("aten.pad.default", "op(x0, [1, 2])"),
        ("aten.reflection_pad1d.default", "op(x0, [1, 2])", LINE),
        ("aten.reflection_pad2d.default", "op(x0, [1, 2, 1, 0])", IMAGE),
        ("aten.reflection_pad3d.default", "op(x0, [1, 2, 1, 0, 2, 1])", VOLUME),
        ("aten.replication_pad1d.default", "op(x0, [1, 2])", LINE),
        ("aten.replication_pad2d.default", "op(x0, [1, 2, 1, 0])", IMAGE),
        ("aten.replication_pad3d.default", "op(x0, [1, 2, 1, 0, 2, 1])", VOLUME),
        ("aten._pad_circular.default", "op(x0, [1, 2])", LINE),
        ("aten.pixel_shuffle.default", "op(x0, 2)", IMAGE),
        ("aten.pixel_unshuffle.default", "op(x0, 2)", IMAGE),
    )
)

SHAPES: tuple[Row, ...] = tuple(
    _rows(
        ("aten.cat.default", "op([x0, x0], 1)"),
        ("aten.permute.default", "op(x0, [1, 0])"),
        ("aten.reshape.default", "op(x0, [-1, 3])"),
        ("aten.view.default", "op(x0, [-1, 3])"),
        ("aten._reshape_copy.default", "op(x0, [-1, 3])"),
        ("aten.squeeze.dim", "op(x0, 1)", ("float32", (B, 1, 6))),
        ("aten.squeeze.dims", "op(x0, [1])", ("float32", (B, 1, 6))),
        ("aten.unsqueeze.default", "op(x0, 1)"),
        ("aten.split.Tensor", "op(x0, 2, 1)[1]"),
        ("aten.split.sizes", "op(x0, [2, 4], 1)[1]"),
        ("aten.split_with_sizes.default", "op(x0, [2, 4], 1)[1]"),
        ("aten.select.int", "op(x0, 1, 2)"),
        ("aten.slice.Tensor", "op(x0, 1, 1, 5, 2)"),
        ("aten.expand.default", "op(x0[:, None], [-1, 4, -1])"),
        ("aten.repeat.default", "op(x0, [1, 2])"),
        ("aten.tile.default", "op(x0, [1, 2])"),
        ("aten.flip.default", "op(x0, [1])"),
        ("aten.roll.default", "op(x0, [2], [1])"),
        ("aten.diagonal.default", "op(x0, 0, 1, 2)", LINE),
        (
            "aten.diagonal.default",
            "op(x0.masked_fill(torch.eye(4, 12) == 0, -torch.inf), 0, -2, -1)",
            LINE,
            "beside infinities",
        ),
        ("aten.as_strided.default", "op(x0, [2, 3], [6, 2])", ("float32", (3, 6))),
        ("aten.as_strided.default", "op(x0, [2, 3], [6, 2])", "of a dynamic size"),
        ("aten.as_strided.default", "op(x0.T, [2, 3], [1, 2])", ("float32", (3, 6)), "of a transpose"),
        ("aten.resize_.default", "op(x0 * 1, [2, 3])", ("float32", (3, 6))),
        ("aten.resize_.default", "op(x0 * 1, [2, 3])", "of a dynamic size"),
        ("aten.resize_.default", "op(x0 * 1, [4, 6])", ("float32", (3, 6)), "to more elements"),
        ("aten.sym_size.int", "x0.new_zeros(op(x0, 0))"),
        ("aten.sym_numel.default", "x0.new_zeros(op(x0))"),
        ("aten.arange.start_step", "op(0, x0.shape[0], 1)"),
        (
            "aten.arange.start_step",
            "op(2**24 + 1, 2**24 + 1 + x0.shape[0] * 3, 3, dtype=torch.int32)",
            "of large int32",
        ),
        ("aten.full.default", "op([x0.shape[0], 2], 3.0)"),
        ("aten.scalar_tensor.default", "x0 + op(2.0)"),
    )
)

INDICES: tuple[Row, ...] = tuple(
    _rows(
        ("aten.gather.default", "op(x0, 1, x1.clamp(0, 5))", X, N),
        ("aten.index_select.default", "op(x0, 1, x1[0].clamp(0, 5))", X, N),
        ("aten.index_select.default", "op(x0, 1, x1[0].clamp(0, 5).int())", X, N, "int32 indices"),
        ("aten.index.Tensor", "op(x0, [None, x1[0].clamp(0, 5)])", X, N),
        ("aten.index.Tensor", "op(x0, [x1[0].clamp(0, 1), x1[1].clamp(0, 5)])", X, N, "several indices"),
        (
            "aten.index.Tensor",
            "op(x0, [x1[0].clamp(0, 1).int(), x1[1].clamp(0, 5).int()])",
            X,
            N,
            "several int32 indices",
        ),
        ("aten.index.Tensor", "op(x0, [x0[:, 0] > 0])", "a mask"),
        ("aten.index.Tensor", "op(x0, [x0 > 0])", "a mask of two axes"),
        ("aten.masked_select.default", "op(x0, x0 > 0)"),
        ("aten.index_copy.default", "op(x0, 1, torch.tensor([2, 1]), x0[:, :2] + 1)"),
        ("aten.index_put.default", "op(x0, [x1[0].clamp(0, 1), torch.arange(6)], x0[0] + 1)", X, N),
        (
            "aten.index_put.default",
            "op(x0, [torch.tensor([1, 0]), torch.tensor([1, 2])], x0[0, :2] + 1, True)",
            X,
            "accumulate",
        ),
        (
            "aten.index_put.default",
            "op(x0, [torch.tensor([1, 0], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)], x0[0, :2] + 1)",
            X,
            "int32 indices",
        ),
        ("aten.index_put.default", "op(x0, [x0 > 0], torch.tensor(2.0))", "a mask of two axes"),
        ("aten.index_put.default", "op(x0, [x0[:, 0] > 0], torch.tensor(2.0))", "a mask"),
        ("aten.scatter.src", "op(x0, 1, torch.tensor([[2, 1]]), x0[:, :2] + 1)"),
        ("aten.scatter.value", "op(x0, 1, torch.tensor([[2, 1]]), 3.0)"),
        ("aten.slice_scatter.default", "op(x0, x0[:, :2] + 1, 1, 1, 3)"),
        ("aten.nonzero.default", "op(x0 > 0)"),
    )
)

#: These rows have a separate model: if a model pools a dynamic axis, all its adaptive pooling is decomposed.
DYNAMIC_POOLS: tuple[Row, ...] = tuple(
    _rows(
        ("aten.adaptive_avg_pool1d.default", "op(x0, [5])", ("float32", (2, 4, (8, 12, 16))), "of a dynamic axis"),
        (
            "aten.adaptive_avg_pool2d.default",
            "op(x0, [5, 3])",
            ("float32", (2, 4, (8, 12, 16), 12)),
            "of a dynamic axis",
        ),
    )
)

#: Heading in docs/aten-operators.md → rows that are tried in one model, except those in `ALONE`.
CHUNKS: Mapping[str, tuple[Row, ...]] = {
    "Elements": ELEMENTS,
    "Pairs of operands": PAIRS,
    "Reductions and sorting": REDUCTIONS,
    "Normalization and distances": NORMS,
    "Products and attention": PRODUCTS,
    "Pooling, padding and resampling": POOLS,
    "Pooling of dynamic axes": DYNAMIC_POOLS,
    "Shapes and sizes": SHAPES,
    "Indices": INDICES,
}

#: Rows that are tried alone. Most of them are refused, and a refused row stops the build of its model.
ALONE = frozenset(
    (
        ("aten._pdist_forward.default", "of a dynamic number of rows"),
        ("aten._scaled_dot_product_flash_attention.default", ""),
        ("aten._scaled_dot_product_efficient_attention.default", ""),
        ("aten._scaled_dot_product_cudnn_attention.default", ""),
        ("aten.resize_.default", "of a dynamic size"),
        ("aten.resize_.default", "to more elements"),
    )
)
