"""The passes of the lower step, in order. A new pass is a function and one row here.

A pass takes a program and returns a program. It may change the graph in place, because the first pass has made a copy.
It sets ``val`` (the fake value) and ``nn_module_stack`` (the enclosing modules) on every node that it adds. It does not
change placeholders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtbuild.stages.lower.attention import write_out_attention
from trtbuild.stages.lower.checks import drop_assertions
from trtbuild.stages.lower.functionalize import functionalize
from trtbuild.stages.lower.half_precision.precision import apply_precision
from trtbuild.stages.lower.identities import drop_identities
from trtbuild.stages.lower.masks import drop_true_masks
from trtbuild.stages.lower.norms import sum_norms_in_float32
from trtbuild.stages.lower.operators.clamps import write_bounds
from trtbuild.stages.lower.operators.integers.division import divide_integers_exactly
from trtbuild.stages.lower.operators.integers.ranges import count_in_int64
from trtbuild.stages.lower.operators.integers.rounding import drop_integer_rounding
from trtbuild.stages.lower.operators.integers.size_arithmetic import divide_sizes_as_python, round_sizes_as_python
from trtbuild.stages.lower.operators.log_sums import write_out_log_sums
from trtbuild.stages.lower.operators.masked_writes import choose_masked_values
from trtbuild.stages.lower.operators.numbers import round_compared_numbers, widen_for_numbers
from trtbuild.stages.lower.operators.products import write_out_factors
from trtbuild.stages.lower.operators.result_types import cast_before_reductions, cast_promoted_operands
from trtbuild.stages.lower.operators.searches.indices import adapt_indices
from trtbuild.stages.lower.operators.searches.infinite_keys import order_finite_keys
from trtbuild.stages.lower.operators.searches.vectors import search_vectors_as_matrices
from trtbuild.stages.lower.operators.series import write_series
from trtbuild.stages.lower.operators.strides import read_owners
from trtbuild.stages.lower.operators.windows.nearest import select_nearest
from trtbuild.stages.lower.operators.windows.pools import write_out_padding
from trtbuild.stages.lower.operators.windows.transposed import write_out_bias
from trtbuild.stages.lower.request import Request
from trtbuild.stages.lower.squeezes import name_squeezed_axes
from trtbuild.stages.lower.truncation import truncate_doubles
from trtbuild.stages.lower.uninitialized import write_zeros
from trtbuild.stages.lower.views import replace_views
from trtbuild.stages.program.functional import Program


@dataclass(frozen=True)
class Pass:
    """One row of the table."""

    name: str
    function: Callable[[Program, Request], Program]
    why: str


PASSES: tuple[Pass, ...] = (
    Pass(
        "functionalize",
        functionalize,
        "in-place writes to views would be wrong in a partitioned graph; ONNX does not have all operators",
    ),
    Pass("write-zeros", write_zeros, "uninitialized memory has another value in every engine"),
    Pass("name-squeezed-axes", name_squeezed_axes, "ONNX's Squeeze fails if a named axis has another size than 1"),
    Pass("drop-integer-rounding", drop_integer_rounding, "ONNX rounds floats only"),
    Pass("divide-integers-exactly", divide_integers_exactly, "the translation of a rounding division uses float32"),
    Pass(
        "write-out-factors",
        write_out_factors,
        "0 times NaN is NaN; a product in float16 may be infinite before it is multiplied by a small factor",
    ),
    Pass(
        "select-nearest",
        select_nearest,
        "Resize and PyTorch may select different elements, because they round differently",
    ),
    Pass(
        "write-out-padding",
        write_out_padding,
        "TensorRT gives another average for a window that ends after the padding, and computes windows outside the input",
    ),
    Pass(
        "write-out-bias",
        write_out_bias,
        "TensorRT adds the bias of a transposed convolution before it appends the elements of `output_padding`",
    ),
    Pass("round-sizes-as-python", round_sizes_as_python, "the translation multiplies a size and a float with float32"),
    Pass("divide-sizes-as-python", divide_sizes_as_python, "the translation of // rounds towards zero"),
    Pass("read-owners", read_owners, "ONNX has no strides: as_strided reads a contiguous copy instead of a view"),
    Pass("count-in-int64", count_in_int64, "the translation of a range of int32 uses float32"),
    Pass("cast-before-reductions", cast_before_reductions, "the translation casts the result instead of the input"),
    Pass(
        "cast-promoted-operands",
        cast_promoted_operands,
        "the exporter fails for ``1.0 - mask`` with integers, and a power of integers and floats would be an integer",
    ),
    Pass(
        "search-vectors-as-matrices",
        search_vectors_as_matrices,
        "TensorRT's TopK needs two axes: a vector becomes a matrix of one row",
    ),
    Pass(
        "choose-masked-values",
        choose_masked_values,
        "the translation of a write to the elements of a mask has NonZero, which TensorRT-RTX lacks",
    ),
    Pass(
        "adapt-indices",
        adapt_indices,
        "ONNX defines GatherND, ScatterND and ScatterElements for fewer kinds of indices",
    ),
    Pass(
        "drop-assertions",
        drop_assertions,
        "assertions compute nothing: ranges are checked by the profiles and the trace",
    ),
    Pass("drop-identities", drop_identities, "a copy is the same value, because nothing is mutated"),
    Pass(
        "replace-views",
        replace_views,
        "a view depends on the strides of its input, which later passes may change; ONNX has no strides",
    ),
    Pass("drop-true-masks", drop_true_masks, "libraries build attention masks that mask nothing"),
    Pass(
        "write-out-attention",
        write_out_attention,
        "a row whose keys are all masked is 0 in eager and not in the translation; `precision` must see the softmax",
    ),
    Pass("sum-norms-in-float32", sum_norms_in_float32, "in half precision, the powers that a norm sums may overflow"),
    Pass(
        "round-compared-numbers",
        round_compared_numbers,
        "PyTorch rounds the number of a comparison to half precision, and the translation does not",
    ),
    Pass("precision", apply_precision, "TensorRT 11 has no precision flags: the graph decides what is half"),
    Pass(
        "truncate-doubles", truncate_doubles, "TensorRT has no float64: with truncate_double it is computed in float32"
    ),
    Pass(
        "widen-for-numbers",
        widen_for_numbers,
        "the translation rounds a number to float16 first, where 1e5 is infinite and 1e-8 is 0",
    ),
    Pass(
        "write-out-log-sums",
        write_out_log_sums,
        "TensorRT's parser takes the log of a softmax, which may be 0; TensorRT 8.6 sums exponentials that may be infinite",
    ),
    Pass(
        "order-finite-keys",
        order_finite_keys,
        "TensorRT's TopK gives the index -1 for an infinity at the end of the order",
    ),
    Pass(
        "write-bounds",
        write_bounds,
        "a Clip without a bound makes infinities finite, and TensorRT gives the lower bound if it is above the upper one",
    ),
    Pass("write-series", write_series, "the translations of expm1 and log1p lose all digits near 0"),
)
