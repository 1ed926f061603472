"""Probes that end the process, or may end it. A call that ends the process is the last call of its probe.

The Python bindings of TensorRT 8.6 release the GIL in ``infer_shapes`` and ``set_optimization_profile_async``. If the
library rejects the call, the bindings set a Python error without the GIL, and the process ends by SIGSEGV.

In the names of calls, "the other" is profile 1, and "it" or "its" refers to the context of the call before. "in order"
returns the error of the stream as text, or an empty text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.runtime.fake_tensorrt.bench import Bench, probe_alone


def _switch(bench: Bench, context: Any, profile: int) -> Callable[[], Any]:
    """Return a call that switches the context to a profile."""
    return lambda: context.set_optimization_profile_async(profile, bench.gpu.stream())


@probe_alone
def a_shared_profile(bench: Bench) -> Any:
    """Two contexts use profile 0, and two use profile 1. The engine was built with PROFILE_SHARING_0806."""
    engine = bench.engine("affine")
    first, second, third, fourth = (bench.bare_context(engine) for _ in range(4))
    return bench.each(
        {
            "first": _switch(bench, first, 0),
            "second": _switch(bench, second, 0),
            "third, the other": _switch(bench, third, 1),
            "fourth, the other": _switch(bench, fourth, 1),
            "profiles": lambda: [c.active_optimization_profile for c in (first, second, third, fourth)],
        }
    )


@probe_alone
def profiles_that_are_not_shared(bench: Bench) -> Any:
    """Two contexts use profiles 0 and 1. Then new contexts replace both."""
    engine = bench.engine("unshared")
    contexts = {"first": bench.bare_context(engine), "second": bench.bare_context(engine)}

    def replace(name: str) -> int:
        contexts.pop(name, None)
        contexts[name] = bench.bare_context(engine)
        return int(contexts[name].active_optimization_profile)

    return bench.each(
        {
            "second, the other": lambda: _switch(bench, contexts["second"], 1)(),
            "its": lambda: contexts["second"].active_optimization_profile,
            "in order": lambda: bench.gpu.synchronize(bench.gpu.stream()),
            "the second anew": lambda: replace("second"),
            "it, the other": lambda: _switch(bench, contexts["second"], 1)(),
            "the first anew": lambda: replace("first"),
            "a third": lambda: replace("third"),
        }
    )


@probe_alone
def a_profile_that_a_context_left_for_another(bench: Bench) -> Any:
    engine = bench.engine("unshared")
    first = bench.bare_context(engine)
    contexts: list[Any] = []
    return bench.each(
        {
            "first, the other": _switch(bench, first, 1),
            "a second": lambda: contexts.append(bench.bare_context(engine)),
            "its": lambda: contexts[0].active_optimization_profile,
            "it, what the first left": lambda: _switch(bench, contexts[0], 0)(),
            "its then": lambda: contexts[0].active_optimization_profile,
        }
    )


@probe_alone
def a_static_engine_whose_profile_is_not_shared(bench: Bench) -> Any:
    engine = bench.engine("unshared_static")
    first, second = bench.context(engine), bench.bare_context(engine)
    second.device_memory = bench.memory(engine)
    return bench.each(
        {
            "its": lambda: second.active_optimization_profile,
            "the first runs": lambda: bench.run(first, "unshared_static", [(2, 3)]),
            "the second runs": lambda: bench.run(second, "unshared_static", [(2, 3)]),
            "its profile": _switch(bench, second, 0),
        }
    )


@probe_alone
def another_profile_of_a_context_that_ran(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    return bench.each(
        {
            "small": lambda: bench.run(context, "affine", [(2, 4)]),
            "switch": _switch(bench, context, 1),
            "specified": lambda: context.all_binding_shapes_specified,
            "input": lambda: context.get_tensor_shape("i0"),
            "output": lambda: context.get_tensor_shape("o0"),
            "large": lambda: bench.run(context, "affine", [(32, 4)]),
            "back": _switch(bench, context, 0),
            "input then": lambda: context.get_tensor_shape("i0"),
            "small again": lambda: bench.run(context, "affine", [(2, 4)]),
        }
    )


@probe_alone
def another_profile_and_its_shapes_inferred(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    return bench.each(
        {
            "small": lambda: bench.run(context, "affine", [(2, 4)]),
            "switch": _switch(bench, context, 1),
            "missing": lambda: context.infer_shapes(),
        }
    )


@probe_alone
def a_shape_above_the_profile_inferred(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    return bench.each({"set": lambda: context.set_input_shape("i0", (9, 4)), "missing": lambda: context.infer_shapes()})


@probe_alone
def ends_the_process_by_shapes_that_do_not_go_together(bench: Bench) -> Any:
    context = bench.context(bench.engine("pair"))
    return bench.each(
        {
            "first": lambda: context.set_input_shape("i0", (2, 3)),
            "second": lambda: context.set_input_shape("i1", (3, 2)),
            "together": lambda: context.infer_shapes(),
        }
    )


@probe_alone
def ends_the_process_by_a_profile_beyond_the_last(bench: Bench) -> Any:
    context = bench.bare_context(bench.engine("affine"))
    return bench.each({"none such": _switch(bench, context, 2)})


@probe_alone
def ends_the_process_by_a_negative_profile(bench: Bench) -> Any:
    context = bench.bare_context(bench.engine("affine"))
    return bench.each({"negative": _switch(bench, context, -1)})


@probe_alone
def ends_the_process_by_a_profile_in_use(bench: Bench) -> Any:
    engine = bench.engine("unshared")
    first, second = bench.bare_context(engine), bench.bare_context(engine)
    return bench.each(
        {
            "first": lambda: first.active_optimization_profile,
            "second": lambda: second.active_optimization_profile,
            "the same": _switch(bench, second, 0),
        }
    )
