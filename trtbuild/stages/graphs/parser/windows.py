"""Pooling, ConvTranspose, Resize and GridSample, in the form in which TensorRT's parser computes what ONNX does.

Rules
1. Pooling with `ceil_mode`: ONNX leaves out a last window that begins in the padding at the end. The parser's layer has
   this window. If `ceil_mode` adds no window on any other axis, the node gets ``ceil_mode=0``. If ONNX leaves out a window
   on one axis and adds one on another, the node is refused.
2. AveragePool with `ceil_mode` and `count_include_pad`: a window may end after the padding, and TensorRT gives another
   average for it (`trtbuild.stages.lower.operators.windows.pools`, rule 2). So the padding becomes a part of the operand.
   The parser computes LpPool from averages that count the padding. So LpPool gets so much padding at the end that no
   window ends after it.
3. GlobalLpPool of an odd order gets an Abs, because the parser takes no absolute values before the powers.
4. ConvTranspose with `output_shape`: if the padding is odd, ONNX pads the beginning by one element more (with SAME_UPPER,
   the end). The parser pads the end. With an automatic padding, the parser ignores `output_shape`. So the padding is
   written out. If it depends on a size that is not known, the node is refused.
5. Resize with ``tf_half_pixel_for_nn``: the parser computes half pixels instead. For the mode nearest, it selects a
   rounding that makes both equal. So the other modes are refused.
6. GridSample: with ``mode=cubic`` and ``padding_mode=border``, TensorRT 8.6 gave wrong values for the majority of the
   output's elements. For an input with five axes, it crashed. Both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.parser.graph import ModelFacts, attribute_of, drop_attributes, set_attribute
from trtbuild.stages.onnx_pools import last_windows


def pool(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rules 1 and 2."""
    if attribute_of(node, "ceil_mode", 0) and _drop_ceil_mode(node, facts):
        if node.op_type == "LpPool":
            _pad_last_window(node)
        elif attribute_of(node, "count_include_pad", 0):
            yield from _padded_operand(node, facts)
    yield node


def add_absolute(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rule 3."""
    if attribute_of(node, "p", 2) % 2:
        absolute = f"{node.output[0]}.absolute"
        yield h.make_node("Abs", list(node.input), [absolute], name=node.name)
        node.input[0] = absolute
    yield node


def write_padding(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rule 4."""
    if attribute_of(node, "output_shape", []):
        _write_padding(node, facts)
    yield node


def refuse_tensorflow_pixels(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rule 5."""
    mode = attribute_of(node, "mode", b"nearest")
    if attribute_of(node, "coordinate_transformation_mode", b"") == b"tf_half_pixel_for_nn" and mode != b"nearest":
        raise ConversionRefused(
            f"Resize has the mode {mode.decode()} and the coordinates tf_half_pixel_for_nn: TensorRT computes half_pixel",
            hint="if the model was trained with half_pixel coordinates, export it with half_pixel",
        )
    yield node


def refuse_grids(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rule 6."""
    sizes = facts.sizes(node.input[0]) or facts.sizes(node.input[1])  # both have the same number of axes
    if sizes is not None and len(sizes) != 4:
        raise ConversionRefused(
            "TensorRT's GridSample samples images: its input has four axes",
            hint="sample each slice of the volume alone",
        )
    if (
        attribute_of(node, "mode", b"") in (b"bicubic", b"cubic")
        and attribute_of(node, "padding_mode", b"") == b"border"
    ):
        raise ConversionRefused(
            "TensorRT's GridSample with mode=cubic and padding_mode=border gives other results than ONNX",
            hint="use linear interpolation, or another padding",
        )
    yield node


def _drop_ceil_mode(node: onnx.NodeProto, facts: ModelFacts) -> bool:
    """Apply rule 1. Returns whether a last window may end after the padding."""
    is_left_out, is_rounded_up = last_windows(node, facts.sizes(node.input[0]))
    if is_left_out and is_rounded_up:
        raise ConversionRefused(
            f"{node.op_type} has ceil_mode=1, and its last window begins after the input: TensorRT computes this window",
            hint="export the model with ceil_mode=False and an explicit padding",
        )
    if is_left_out:
        set_attribute(node, "ceil_mode", 0)
    return is_rounded_up


def _pad_last_window(node: onnx.NodeProto) -> None:
    """Apply rule 2 to LpPool: zeros change no norm. A window may end after the padding by less than a step."""
    axes = len(attribute_of(node, "kernel_shape", []))
    pads = attribute_of(node, "pads", [0] * 2 * axes)
    ends = [end + step - 1 for end, step in zip(pads[axes:], attribute_of(node, "strides", [1] * axes), strict=True)]
    set_attribute(node, "pads", [*pads[:axes], *ends])
    set_attribute(node, "ceil_mode", 0)
    drop_attributes(node, "auto_pad")


def _padded_operand(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Apply rule 2 to AveragePool: yields a Pad, and changes the node so that its operand has the padding."""
    axes = len(attribute_of(node, "kernel_shape", []))
    pads = attribute_of(node, "pads", [0] * 2 * axes)
    set_attribute(node, "count_include_pad", 0)
    if not any(pads):
        return
    set_attribute(node, "pads", [0] * 2 * axes)
    source, padded = node.input[0], f"{node.output[0]}.padded"
    all_pads = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
    node.input[0] = padded
    if facts.opset < 11:
        yield h.make_node("Pad", [source], [padded], name=node.name, pads=all_pads)
        return
    pads_name = facts.add_constant(f"{padded}.pads", np.array(all_pads, np.int64))
    yield h.make_node("Pad", [source, pads_name], [padded], name=node.name)


def _write_padding(node: onnx.NodeProto, facts: ModelFacts) -> None:
    output_sizes = attribute_of(node, "output_shape", [])
    axes = len(output_sizes)
    sizes, kernel = facts.sizes(node.input[0]), facts.sizes(node.input[1])
    if sizes is None or kernel is None or None in sizes[-axes:] or None in kernel[-axes:]:
        raise ConversionRefused(
            "ConvTranspose has output_shape, and its padding depends on a dynamic size",
            hint="export the model with explicit pads, or declare a static size",
        )
    steps, gaps = attribute_of(node, "strides", [1] * axes), attribute_of(node, "dilations", [1] * axes)
    extras = attribute_of(node, "output_padding", [0] * axes)
    padding = attribute_of(node, "auto_pad", b"NOTSET")
    totals = [
        step * (size - 1) + extra + gap * (width - 1) + 1 - count
        for size, width, step, gap, extra, count in zip(
            sizes[-axes:], kernel[-axes:], steps, gaps, extras, output_sizes, strict=True
        )
    ]
    if padding == b"NOTSET" and all(total <= 0 or total % 2 == 0 for total in totals):
        return
    ends = [max(total, 0) // 2 for total in totals]
    begins = [max(total, 0) - end for total, end in zip(totals, ends, strict=True)]
    set_attribute(node, "pads", [*ends, *begins] if padding == b"SAME_UPPER" else [*begins, *ends])
    set_attribute(node, "output_padding", [extra - min(total, 0) for extra, total in zip(extras, totals, strict=True)])
    drop_attributes(node, "auto_pad", "output_shape")
