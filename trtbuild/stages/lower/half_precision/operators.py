"""The table of operators for precision: which compute in half and which stay in float32, with reasons.

Rules
1. Operators have their names in aten, without the overload. A row is for all overloads except those in `OVERLOAD_ROWS`.
2. Operators without a row, and operators outside aten, stay in float32.
3. Most operators that stay in float32 are in the list of ``torch.autocast`` (torch.amp's op reference). Other operators
   (softmax, norms, sums) have half kernels in torch that compute in float32 inside. An engine would compute them in half,
   so they stay in float32, too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import torch


class Role(enum.Enum):
    """How the dtype of an operator is decided."""

    CONTRACTION = "half: multiply-add over an axis; the hardware accumulates in float32"
    ELEMENTWISE = "half; float32 if an input is wide, or if only float32 operators read the result"
    SCALING = "like ELEMENTWISE; the parameters and the inner computation stay float32"
    MOVE = "the dtype of its input"
    COMPARE = "computes in the dtype of its inputs; the result is not a float"
    SHAPE = "reads sizes only: its inputs are never cast"
    KEEP = "float32"


class Result(enum.Enum):
    """The range of an operator's result, for `trtbuild.stages.lower.half_precision.ranges`."""

    FITS = "counts as fitting half for every input (`ranges.py` has exceptions for matrix products and constants)"
    FOLLOWS = "fits if the inputs fit"
    WIDE = "may leave half's range, or needs more digits than half has"


@dataclass(frozen=True)
class Row:
    """One row of the table. `reason` explains the role."""

    role: Role
    result: Result
    reason: str


def _rows(role: Role, result: Result, reason: str, names: str) -> Iterable[tuple[str, Row]]:
    row = Row(role, result, reason)
    return ((name, row) for name in names.split())


#: (range of the result, reason, names of operators)
_FLOAT32_OPERATORS: tuple[tuple[Result, str, str], ...] = (
    (
        Result.FITS,
        "softmax: exponentials are summed over a row, and masks hold float32's minimum",
        "softmax _softmax _safe_softmax special_softmax log_softmax _log_softmax special_log_softmax",
    ),
    (
        Result.FITS,
        "norms: they sum squares, and divide by a variance",
        "layer_norm native_layer_norm group_norm native_group_norm instance_norm batch_norm native_batch_norm "
        "_native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm rms_norm _fused_rms_norm",
    ),
    (
        Result.WIDE,
        "sums: n terms need a larger range and more digits than one",
        "sum nansum prod cumsum cumprod trace linalg_vector_norm norm dist renorm var var_mean "
        "scatter_add index_add scatter_reduce histc embedding_bag _embedding_bag _embedding_bag_forward_only col2im",
    ),
    (
        Result.FOLLOWS,
        "averages: the sum inside leaves half's range, the result does not",
        "mean nanmean std std_mean logsumexp logaddexp logaddexp2 logcumsumexp avg_pool1d avg_pool2d avg_pool3d "
        "adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d",
    ),
    (
        Result.WIDE,
        "distances: differences of large squares cancel",
        "cdist _cdist_forward _euclidean_dist pdist _pdist_forward pairwise_distance cosine_similarity",
    ),
    (
        Result.WIDE,
        "powers: float16 ends at 255 squared, and 1/x of a small x is above it",
        "pow square exp exp2 expm1 special_expm1 rsqrt reciprocal sinh cosh tan lgamma digamma special_erfcx",
    ),
    (
        Result.FOLLOWS,
        "roots and logarithms: small arguments (a variance plus an epsilon) are subnormal in float16",
        "sqrt log log2 log10 log1p logit xlogy log_sigmoid softplus asinh acosh atanh erfinv asin acos",
    ),
    (
        Result.FITS,
        "angles: a position of four digits has no fraction left in half",
        "sin cos sinc special_sinc atan atan2 angle polar",
    ),
    (
        Result.FOLLOWS,
        "rounding: an error in the last digit may change the result by 1, which is mostly an index; units of angles",
        "floor ceil round trunc frac fmod remainder floor_divide deg2rad rad2deg",
    ),
    (
        Result.WIDE,
        "losses: sums over all elements, often of logarithms or squares",
        "mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy_loss nll_loss nll_loss_forward nll_loss_nd "
        "nll_loss2d kl_div binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss "
        "poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss "
        "multilabel_margin_loss multi_margin_loss ctc_loss",
    ),
    (
        Result.FOLLOWS,
        "sampling: coordinates in -1..1 resolve 1,024 pixels in float16, 128 in bfloat16",
        "grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator",
    ),
    (
        Result.WIDE,
        "linear algebra and transforms: ill-conditioned, and without half kernels",
        "det linalg_det _linalg_det logdet linalg_inv_ex linalg_solve_ex stft _fft_c2c _fft_c2r _fft_r2c",
    ),
    (Result.FITS, "recurrence: rounding adds up over the steps of a sequence", "lstm gru rnn_tanh rnn_relu"),
    (
        Result.FOLLOWS,
        "quantization: scales and zero points are exact numbers",
        "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
    ),
    (Result.FOLLOWS, "conversions: the dtype is an argument", "_to_copy to type_as"),
    (
        Result.WIDE,
        "positions: half counts exactly to 2,048 (float16) or 256 (bfloat16)",
        "arange linspace logspace",
    ),
    (
        Result.FITS,
        "constants: the compiler folds the cast, and the value itself shows whether it fits half",
        "zeros ones empty eye full scalar_tensor hann_window hamming_window blackman_window fill",
    ),
)

_CONTRACTIONS = (
    "linear matmul mm bmm addmm addbmm baddbmm mv addmv dot vdot addr einsum bilinear tensordot _grouped_mm "
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d "
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"
)

_ELEMENTWISE = (
    "add sub rsub subtract mul multiply div divide true_divide neg abs positive addcmul addcdiv lerp cross linalg_cross "
    "relu leaky_relu prelu _prelu_kernel rrelu elu celu selu gelu silu mish hardswish glu threshold hardshrink softshrink "
    "clamp clamp_min clamp_max clip hardtanh where masked_fill maximum minimum fmax fmin nan_to_num dropout native_dropout "
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa"
)

_ELEMENTWISE_BOUNDED = "sigmoid tanh erf erfc special_erf special_erfc hardsigmoid relu6 sign sgn heaviside"

#: Batch normalization with the model's own statistics: a factor and a term for each channel.
_SCALINGS = "_native_batch_norm_legit_no_training"

_MOVES = (
    "view _unsafe_view view_copy view_as reshape _reshape_copy _reshape_alias flatten unflatten expand expand_copy "
    "expand_as broadcast_to permute permute_copy transpose transpose_copy t t_copy mT mH movedim squeeze squeeze_copy "
    "unsqueeze unsqueeze_copy select select_copy slice slice_copy narrow split split_copy split_with_sizes "
    "split_with_sizes_copy unsafe_split unsafe_split_with_sizes chunk unsafe_chunk unbind unbind_copy cat concat "
    "concatenate stack gather index _unsafe_index index_select embedding take tile repeat repeat_interleave roll flip "
    "rot90 tril triu diag diag_embed diagonal diagonal_copy as_strided as_strided_copy unfold unfold_copy im2col pad "
    "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle alias clone contiguous detach lift_fresh_copy "
    "copy slice_scatter select_scatter diagonal_scatter scatter index_put _unsafe_index_put masked_scatter "
    "masked_select amax amin aminmax max min max_pool1d max_pool2d max_pool3d max_pool1d_with_indices "
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d sort "
    "topk upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d atleast_1d atleast_2d atleast_3d"
)

_COMPARISONS = (
    "eq ne lt le gt ge not_equal greater greater_equal less less_equal isnan isinf isfinite isneginf isposinf signbit "
    "argmax argmin argsort logical_and logical_or logical_not logical_xor any all nonzero"
)

_SHAPES = (
    "sym_size sym_stride sym_numel sym_storage_offset zeros_like ones_like empty_like full_like new_zeros new_ones "
    "new_empty new_full new_empty_strided"
)

#: Operator name → its row.
OPERATORS: dict[str, Row] = dict(
    [
        *(pair for result, reason, names in _FLOAT32_OPERATORS for pair in _rows(Role.KEEP, result, reason, names)),
        *_rows(Role.CONTRACTION, Result.FITS, "half precision is made for these", _CONTRACTIONS),
        *_rows(Role.ELEMENTWISE, Result.FOLLOWS, "one rounding per value", _ELEMENTWISE),
        *_rows(Role.ELEMENTWISE, Result.FITS, "bounded for every input", _ELEMENTWISE_BOUNDED),
        *_rows(Role.SCALING, Result.FITS, "a factor and a term per channel, from float32 parameters", _SCALINGS),
        *_rows(Role.MOVE, Result.FOLLOWS, "moves or selects values: exact in any dtype", _MOVES),
        *_rows(Role.COMPARE, Result.FITS, "the result is not a float", _COMPARISONS),
        *_rows(Role.SHAPE, Result.FITS, "reads the shape of its input, not its values", _SHAPES),
    ]
)

_UNKNOWN_OPERATOR = Row(Role.KEEP, Result.FOLLOWS, "not known to be right in half")

#: Operators that must read an additive mask without a cast, because half turns its lowest number into -inf.
EXPONENTIAL_OPERATORS = frozenset(
    {"softmax", "_softmax", "_safe_softmax", "special_softmax", "log_softmax", "_log_softmax", "special_log_softmax"}
    | {"exp", "logsumexp"}
)

#: The rows of overloads that do not use the row of their operator.
OVERLOAD_ROWS: dict[str, Row] = {
    "div.Tensor_mode": OPERATORS["floor_divide"],
    "div.Scalar_mode": OPERATORS["floor_divide"],
    "scatter.reduce": OPERATORS["scatter_add"],
    "scatter.value_reduce": OPERATORS["scatter_add"],
}


def row_of(target: object) -> Row:
    """The row of a node's target; an operator without a row stays in float32."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return _UNKNOWN_OPERATOR
    name = target._opname
    return OVERLOAD_ROWS.get(f"{name}.{target._overloadname}") or OPERATORS.get(name, _UNKNOWN_OPERATOR)
