"""Probes about shapes: which input shapes a context accepts, which output shapes it reports, and whether it runs.

A probe is a function that makes calls of the real or the fake TensorRT, and returns the answers (bench.py). A
`probe_alone` needs its own process. The answer with the key ``in order`` is the text of the stream's error, or empty if
there is no error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.runtime.fake_tensorrt.bench import Bench, probe, probe_alone


@probe
def shapes_of_inputs(bench: Bench) -> Any:
    engine = bench.engine("affine")
    context = bench.context(engine)
    return bench.each(
        {
            "missing at first": lambda: context.infer_shapes(),
            "specified at first": lambda: context.all_binding_shapes_specified,
            "input before": lambda: context.get_tensor_shape("i0"),
            "output before": lambda: context.get_tensor_shape("o0"),
            "in range": lambda: context.set_input_shape("i0", (3, 4)),
            "missing then": lambda: context.infer_shapes(),
            "specified then": lambda: context.all_binding_shapes_specified,
            "output then": lambda: context.get_tensor_shape("o0"),
            "wrong fixed size": lambda: context.set_input_shape("i0", (3, 5)),
            "wrong rank": lambda: context.set_input_shape("i0", (3,)),
            "negative": lambda: context.set_input_shape("i0", (-1, 4)),
            "of an output": lambda: context.set_input_shape("o0", (3, 4)),
            "of no tensor": lambda: context.set_input_shape("i7", (3, 4)),
            "a list": lambda: context.set_input_shape("i0", [2, 4]),
            "unknown tensor": lambda: context.get_tensor_shape("i7"),
            "unknown tensor, in words": lambda: str(context.get_tensor_shape("i7")),
            "a shape in words": lambda: str(context.get_tensor_shape("o0")),
            "iterates by itself": lambda: hasattr(context.get_tensor_shape("o0"), "__iter__"),
        }
    )


@probe
def shapes_of_static_inputs(bench: Bench) -> Any:
    half, scalar = bench.context(bench.engine("half")), bench.context(bench.engine("scalar"))
    return bench.each(
        {
            "missing": lambda: half.infer_shapes(),
            "specified": lambda: half.all_binding_shapes_specified,
            "output before": lambda: half.get_tensor_shape("o0"),
            "the same": lambda: half.set_input_shape("i0", (2, 3)),
            "another": lambda: half.set_input_shape("i0", (2, 4)),
            "output": lambda: half.get_tensor_shape("o0"),
            "scalar": lambda: scalar.set_input_shape("i0", ()),
            "its output": lambda: scalar.get_tensor_shape("o0"),
        }
    )


def _bind(bench: Bench, context: Any, *names: str) -> Any:
    for name in names:
        context.set_tensor_address(name, bench.gpu.allocate(4096))
    return context


def _state(bench: Bench, context: Any) -> dict[str, Callable[[], Any]]:
    """Return calls that read the context's state and run the context."""
    return {
        "specified": lambda: context.all_binding_shapes_specified,
        "first input": lambda: context.get_tensor_shape("i0"),
        "output": lambda: context.get_tensor_shape("o0"),
        "run": lambda: context.execute_async_v3(bench.gpu.stream()),
        "in order": lambda: bench.gpu.synchronize(bench.gpu.stream()),
        "output after it": lambda: context.get_tensor_shape("o0"),
    }


@probe_alone
def shapes_that_are_missing(bench: Bench) -> Any:
    """One of the two inputs has no shape."""
    context = _bind(bench, bench.context(bench.engine("pair")), "i0", "i1", "o0", "o1")
    return bench.each(
        {
            "first": lambda: context.set_input_shape("i0", (2, 3)),
            "missing": lambda: context.infer_shapes(),
            "output of the first alone": lambda: context.get_tensor_shape("o1"),
            **_state(bench, context),
        }
    )


@probe_alone
def shapes_that_do_not_go_together(bench: Bench) -> Any:
    context = _bind(bench, bench.context(bench.engine("pair")), "i0", "i1", "o0", "o1")
    return bench.each(
        {
            "first": lambda: context.set_input_shape("i0", (2, 3)),
            "second": lambda: context.set_input_shape("i1", (3, 2)),
            "output of the first alone": lambda: context.get_tensor_shape("o1"),
            **_state(bench, context),
            "mended": lambda: context.set_input_shape("i1", (2, 3)),
            "mended output": lambda: context.get_tensor_shape("o0"),
            "mended run": lambda: bench.run(context, "pair", [(2, 3), (2, 3)]),
        }
    )


@probe_alone
def a_shape_above_the_profile(bench: Bench) -> Any:
    context = _bind(bench, bench.context(bench.engine("affine")), "i0", "o0")
    return bench.each(
        {
            "set": lambda: context.set_input_shape("i0", (9, 4)),
            **_state(bench, context),
            "mended": lambda: bench.run(context, "affine", [(8, 4)]),
        }
    )


@probe_alone
def a_shape_below_the_profile(bench: Bench) -> Any:
    context = _bind(bench, bench.context(bench.engine("affine"), 1), "i0", "o0")
    return bench.each(
        {
            "set": lambda: context.set_input_shape("i0", (7, 4)),
            **_state(bench, context),
            "mended": lambda: bench.run(context, "affine", [(8, 4)]),
        }
    )


@probe_alone
def runs_that_are_not_ready(bench: Bench) -> Any:
    stream, engine = bench.gpu.stream(), bench.engine("affine")
    shapeless = _bind(bench, bench.context(engine), "i0", "o0")
    inputless = _bind(bench, bench.context(engine), "o0")
    outputless = _bind(bench, bench.context(engine), "i0")
    for context in (inputless, outputless):
        context.set_input_shape("i0", (3, 4))
    return bench.each(
        {
            "no shape": lambda: shapeless.execute_async_v3(stream),
            "no input": lambda: inputless.execute_async_v3(stream),
            "no output": lambda: outputless.execute_async_v3(stream),
            "in order": lambda: bench.gpu.synchronize(stream),
        }
    )


@probe_alone
def inputs_whose_values_are_shapes(bench: Bench) -> Any:
    """The engine reads one input in host memory. This input has no address yet."""
    context = bench.context(bench.engine("shaped"))
    return bench.each(
        {
            "set": lambda: context.set_input_shape("i0", (4,)),
            "specified": lambda: context.all_binding_shapes_specified,
            "shapes specified": lambda: context.all_shape_inputs_specified,
            "missing": lambda: context.infer_shapes(),
            "output": lambda: context.get_tensor_shape("o0"),
        }
    )
