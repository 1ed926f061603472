"""Probes of a TensorRT library: functions that make calls and return the answers as plain JSON.

benchmarks/gpu_record.py runs the probes with the real library, and the tests run them with the fake. `PROBES` has the
probes of this file, then those about shapes (probes_of_shapes.py), then those that may end the process
(probes_that_end.py).
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tests.runtime.fake_tensorrt.bench import ALONE, PROBES, Bench, ask, died, normal, outcome, probe
from tests.runtime.fake_tensorrt.samples import SAMPLES

__all__ = ["ALONE", "PROBES", "Bench", "ask", "died", "normal"]


@probe
def describes_its_engines(bench: Bench) -> Any:
    trt = bench.trt

    def describe(name: str) -> Any:
        engine = bench.engine(name)
        tensors = [engine.get_tensor_name(k) for k in range(engine.num_io_tensors)]
        return {
            "tensors": [
                {
                    "name": tensor,
                    "input": engine.get_tensor_mode(tensor) == trt.TensorIOMode.INPUT,
                    "dtype": engine.get_tensor_dtype(tensor).name,
                    "shape": engine.get_tensor_shape(tensor),
                    "device": engine.get_tensor_location(tensor) == trt.TensorLocation.DEVICE,
                    "decides shapes": engine.is_shape_inference_io(tensor),
                }
                for tensor in tensors
            ],
            "profiles": [
                {
                    tensor: engine.get_tensor_profile_shape(tensor, profile)
                    for tensor in tensors
                    if tensor.startswith("i")
                }
                for profile in range(engine.num_optimization_profiles)
            ],
            "device_memory": engine.device_memory_size,
        }

    return bench.each({name: lambda n=name: describe(n) for name in SAMPLES})


@probe
def tensors_that_are_not_there(bench: Bench) -> Any:
    engine = bench.engine("affine")
    return bench.each(
        {
            "its location": lambda: engine.get_tensor_location("i7").name,
            "decides shapes": lambda: engine.is_shape_inference_io("i7"),
            "its shape": lambda: engine.get_tensor_shape("i7"),
        }
    )


@probe
def damaged_plans(bench: Bench) -> Any:
    plan, load = bench.plans["affine"], bench.runtime.deserialize_cuda_engine
    return bench.each(
        {
            "nothing": lambda: load(b"") is None,
            "garbage": lambda: load(b"not a plan at all" * 40) is None,
            "truncated": lambda: load(plan[: len(plan) // 2]) is None,
            "memoryview": lambda: load(memoryview(plan)) is not None,
        }
    )


@probe
def optimization_profiles(bench: Bench) -> Any:
    engine, stream = bench.engine("affine"), bench.gpu.stream()
    context = bench.bare_context(engine)
    return bench.each(
        {
            "at first": lambda: context.active_optimization_profile,
            "zero": lambda: context.set_optimization_profile_async(0, stream),
            "zero again": lambda: context.set_optimization_profile_async(0, stream),
            "one": lambda: context.set_optimization_profile_async(1, stream),
            "then": lambda: context.active_optimization_profile,
            "in order": lambda: bench.gpu.synchronize(stream),  # the text of the stream's error, "" without an error
        }
    )


@probe
def profiles_of_new_contexts(bench: Bench) -> Any:
    """Create three contexts of each engine, and return the profile of each context."""
    contexts = []

    def make(engine: Any) -> Any:
        for _ in range(3):
            contexts.append(bench.bare_context(engine))
        return [context.active_optimization_profile for context in contexts[-3:]]

    return bench.each(
        {name: lambda n=name: make(bench.engine(n)) for name in ("affine", "unshared", "half", "unshared_static")}
    )


@probe
def contexts_are_objects(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    return bench.each(
        {
            "hashed": lambda: isinstance(hash(context), int),
            "equal to itself": lambda: context == context,
            "referenced weakly": lambda: weakref.ref(context)() is context,
        }
    )


@probe
def addresses(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    address = bench.gpu.allocate(256)
    return bench.each(
        {
            "input": lambda: context.set_tensor_address("i0", address),
            "is it": lambda: context.get_tensor_address("i0") == address,
            "output": lambda: context.set_tensor_address("o0", address),
            "null input": lambda: context.set_tensor_address("i0", 0),
            "null output": lambda: context.set_tensor_address("o0", 0),
            "no tensor": lambda: context.set_tensor_address("i7", address),
            "not aligned": lambda: context.set_tensor_address("i0", address + 4),
        }
    )


@probe
def right_numbers(bench: Bench) -> Any:
    cases: dict[str, tuple[str, int, list[list[tuple[int, ...]]]]] = {
        "affine": ("affine", 0, [[(1, 4)], [(8, 4)], [(3, 4)]]),
        "affine by its second profile": ("affine", 1, [[(8, 4)], [(32, 4)]]),
        "pair": ("pair", 0, [[(2, 3), (2, 3)], [(8, 8), (8, 8)], [(1, 5), (1, 5)]]),
        "half": ("half", 0, [[(2, 3)]]),
        "scalar": ("scalar", 0, [[()]]),
        "kinds": ("kinds", 0, [[(4,)], [(16,)]]),
        "wide": ("wide", 0, [[(1, 256)], [(64, 256)]]),
        "wide by its second profile": ("wide", 1, [[(64, 256)], [(512, 256)]]),
    }

    def run(sample: str, profile: int, shapes: list[list[tuple[int, ...]]]) -> Any:
        context = bench.context(bench.engine(sample), profile)
        return [outcome(lambda s=entry: bench.run(context, sample, s)) for entry in shapes]

    return bench.each({name: lambda c=case: run(*c) for name, case in cases.items()})


@probe
def empty_tensors(bench: Bench) -> Any:
    context, stream = bench.context(bench.engine("empty")), bench.gpu.stream()
    address = bench.gpu.allocate(256)

    def run(data: int) -> Any:
        accepted = [context.set_tensor_address("i0", data), context.set_tensor_address("o0", data)]
        return [accepted, context.execute_async_v3(stream), bench.gpu.synchronize(stream)]

    return bench.each(
        {
            "shape": lambda: context.set_input_shape("i0", (0, 4)),
            "output": lambda: context.get_tensor_shape("o0"),
            "some address": lambda: run(address),
            "no address": lambda: run(0),
        }
    )


@probe
def outputs_of_unknown_size(bench: Bench) -> Any:
    trt, gpu = bench.trt, bench.gpu
    context = bench.context(bench.engine("nonzero"))
    calls: list[Any] = []
    place = gpu.allocate(4096)
    place += -place % 512

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            calls.append(["allocate", name, size, alignment])
            return place

        def notify_shape(self, name: str, shape: Any) -> None:
            calls.append(["shape", name, shape])

    allocator = Allocator()
    data = np.array([0, 5, 0, 7], np.float32)
    address = gpu.allocate(256)
    gpu.write(address, data)
    return bench.each(
        {
            "shape": lambda: context.set_input_shape("i0", (4,)),
            "specified": lambda: context.all_binding_shapes_specified,
            "output": lambda: context.get_tensor_shape("o0"),
            "at most": lambda: context.get_max_output_size("o0"),
            "allocator": lambda: context.set_output_allocator("o0", allocator),
            "input": lambda: context.set_tensor_address("i0", address),
            "run": lambda: context.execute_async_v3(gpu.stream()),
            "in order": lambda: gpu.synchronize(gpu.stream()),
            "calls": lambda: calls,
            "values": lambda: gpu.read(place, (1, 2), np.int32).tolist(),
            "output after it": lambda: context.get_tensor_shape("o0"),
        }
    )


@probe
def a_profiler_hears_of_layers(bench: Bench) -> Any:
    trt = bench.trt
    context = bench.context(bench.engine("affine"))
    reported: list[tuple[str, float]] = []

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer: str, milliseconds: float) -> None:
            reported.append((layer, milliseconds))

    profiler = Profiler()
    context.profiler = profiler
    ran = bench.run(context, "affine", [(2, 4)])
    return {"ran": ran["ran"], "right": ran["right"], "heard": len(reported) > 0, "kept": context.profiler is not None}


@probe
def memory_is_an_address(bench: Bench) -> Any:
    engine, small = bench.engine("wide"), bench.engine("affine")
    context, needs_no_memory = bench.bare_context(engine), bench.bare_context(small)
    address = bench.gpu.allocate(max(engine.device_memory_size, 512) + 1024)
    address += -address % 512
    return bench.each(
        {
            "given": lambda: setattr(context, "device_memory", address),
            "read": lambda: context.device_memory,
            "aligned to 8": lambda: setattr(context, "device_memory", address + 8),
            "aligned to 256": lambda: setattr(context, "device_memory", address + 256),
            "aligned to 512": lambda: setattr(context, "device_memory", address + 512),
            "null": lambda: setattr(context, "device_memory", 0),
            "null where none is needed": lambda: setattr(needs_no_memory, "device_memory", 0),
            "aligned to 256 where none is needed": lambda: setattr(needs_no_memory, "device_memory", address + 256),
        }
    )


from tests.runtime.fake_tensorrt import probes_of_shapes, probes_that_end  # noqa: E402, F401 - these modules add probes
