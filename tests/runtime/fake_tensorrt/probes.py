"""Questions to a TensorRT library, and its answers as JSON: the recorder asks the real one, the tests ask the fake.

A probe gets a `Bench`: the library's module, a plan of each sample, memory and a stream of the GPU (or the fake's). Its
answer is what the calls returned or raised, and what the library said meanwhile (errors and warnings).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tests.runtime.fake_tensorrt.samples import SAMPLES, numpy_type


class Gpu(Protocol):
    """Memory and a stream."""

    def allocate(self, size_bytes: int) -> int: ...
    def write(self, address: int, data: Any) -> None: ...
    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any: ...
    def stream(self) -> int: ...
    def synchronize(self, stream: int) -> str: ...


@dataclass
class Bench:
    trt: Any
    plans: dict[str, bytes]
    gpu: Gpu
    said: list[tuple[str, str]] = field(default_factory=list)

    def engine(self, sample: str) -> Any:
        """A new engine."""
        return self.runtime.deserialize_cuda_engine(self.plans[sample])

    def context(self, engine: Any, profile: int | None = 0) -> Any:
        """A context with memory, and a profile."""
        context = engine.create_execution_context_without_device_memory()
        context.device_memory = self.gpu.allocate(max(engine.device_memory_size, 256))
        if profile is not None:
            context.set_optimization_profile_async(profile, self.gpu.stream())
        return context

    def logger(self) -> Any:
        trt, said = self.trt, self.said

        class Listener(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:
                if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                    said.append((str(severity).rpartition(".")[2], text))

        return Listener()

    def start(self) -> None:
        self.runtime = self.trt.Runtime(self.logger())

    def fill(self, dtype: str, shape: tuple[int, ...]) -> tuple[int, Any]:
        """The address of new values: 0, 1, 2… less one."""
        count = int(np.prod(shape))
        data = (np.arange(count) - 1).reshape(shape).astype(numpy_type(dtype))
        address = self.gpu.allocate(max(data.nbytes, 256))
        self.gpu.write(address, data)
        return address, data

    def run(self, context: Any, sample: str, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
        """Set everything, run, and compare with NumPy."""
        spec = SAMPLES[sample]
        inputs = []
        for index, (shape, (dtype, _)) in enumerate(zip(shapes, spec.inputs, strict=True)):
            address, data = self.fill(dtype, shape)
            assert context.set_input_shape(f"i{index}", shape)
            assert context.set_tensor_address(f"i{index}", address)
            inputs.append(data)
        missing = context.infer_shapes()
        wanted = spec.compute(*inputs)
        outputs = []
        for index, (array, (dtype, _)) in enumerate(zip(wanted, spec.outputs, strict=True)):
            address = self.gpu.allocate(max(array.nbytes, 256))
            assert context.set_tensor_address(f"o{index}", address)
            outputs.append((address, tuple(context.get_tensor_shape(f"o{index}")), dtype))
        ran = context.execute_async_v3(self.gpu.stream())
        failed = self.gpu.synchronize(self.gpu.stream())
        right = [
            bool(np.array_equal(self.gpu.read(address, shape, numpy_type(dtype)), array))
            for (address, shape, dtype), array in zip(outputs, wanted, strict=True)
        ]
        return {
            "missing": list(missing),
            "ran": ran,
            "failed": failed,
            "shapes": [list(shape) for _, shape, _ in outputs],
            "right": right,
        }


PROBES: dict[str, Callable[[Bench], Any]] = {}


def probe(function: Callable[[Bench], Any]) -> Callable[[Bench], Any]:
    PROBES[function.__name__] = function
    return function


def ask(bench: Bench, name: str) -> dict[str, Any]:
    """The answer of one probe."""
    bench.said.clear()
    answer = _outcome(lambda: PROBES[name](bench))
    return {**answer, "said": [[severity, normal(text)] for severity, text in bench.said]}


def normal(text: str) -> str:
    """A message without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return re.sub(r"\s+", " ", text).strip()


def _outcome(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"returns": _plain(call())}
    except Exception as error:
        return {"raises": type(error).__name__, "text": normal(str(error)).partition(" Invoked with")[0]}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if hasattr(value, "__iter__"):
        return [_plain(entry) for entry in value]
    return str(value)


def _each(bench: Bench, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Several calls in order, each with what it returns or raises and what was said."""
    found = {}
    for name, call in calls.items():
        mark = len(bench.said)
        found[name] = {
            **_outcome(call),
            "said": [[severity, normal(text)] for severity, text in bench.said[mark:]],
        }
    return found


@probe
def describes_its_engines(bench: Bench) -> Any:
    trt, found = bench.trt, {}
    for name in SAMPLES:
        engine = bench.engine(name)
        tensors = [engine.get_tensor_name(k) for k in range(engine.num_io_tensors)]
        found[name] = {
            "tensors": [
                {
                    "name": tensor,
                    "input": engine.get_tensor_mode(tensor) == trt.TensorIOMode.INPUT,
                    "dtype": engine.get_tensor_dtype(tensor).name,
                    "shape": list(engine.get_tensor_shape(tensor)),
                    "device": engine.get_tensor_location(tensor) == trt.TensorLocation.DEVICE,
                }
                for tensor in tensors
            ],
            "profiles": [
                {
                    tensor: [list(shape) for shape in engine.get_tensor_profile_shape(tensor, profile)]
                    for tensor in tensors
                    if tensor.startswith("i")
                }
                for profile in range(engine.num_optimization_profiles)
            ],
            "device_memory": engine.device_memory_size,
        }
    return found


@probe
def damaged_plans(bench: Bench) -> Any:
    plan, load = bench.plans["affine"], bench.runtime.deserialize_cuda_engine
    return _each(
        bench,
        {
            "nothing": lambda: load(b"") is None,
            "garbage": lambda: load(b"not a plan at all" * 40) is None,
            "truncated": lambda: load(plan[: len(plan) // 2]) is None,
            "memoryview": lambda: load(memoryview(plan)) is not None,
        },
    )


@probe
def optimization_profiles(bench: Bench) -> Any:
    engine, stream = bench.engine("affine"), bench.gpu.stream()
    context = engine.create_execution_context_without_device_memory()
    return _each(
        bench,
        {
            "at first": lambda: context.active_optimization_profile,
            "zero": lambda: context.set_optimization_profile_async(0, stream),
            "zero again": lambda: context.set_optimization_profile_async(0, stream),
            "one": lambda: context.set_optimization_profile_async(1, stream),
            "then": lambda: context.active_optimization_profile,
            "none such": lambda: context.set_optimization_profile_async(2, stream),
            "negative": lambda: context.set_optimization_profile_async(-1, stream),
        },
    )


@probe
def two_contexts_of_one_profile(bench: Bench) -> Any:
    stream, found = bench.gpu.stream(), {}
    for name in ("affine", "unshared", "half"):
        engine = bench.engine(name)
        contexts = [engine.create_execution_context_without_device_memory() for _ in range(2)]
        found[name] = _each(
            bench,
            {
                "first": lambda c=contexts[0]: c.set_optimization_profile_async(0, stream),
                "second": lambda c=contexts[1]: c.set_optimization_profile_async(0, stream),
                "its profile": lambda c=contexts[1]: c.active_optimization_profile,
            },
        )
    return found


@probe
def shapes_of_inputs(bench: Bench) -> Any:
    engine = bench.engine("affine")
    context = bench.context(engine)
    return _each(
        bench,
        {
            "missing at first": lambda: context.infer_shapes(),
            "output before": lambda: context.get_tensor_shape("o0"),
            "in range": lambda: context.set_input_shape("i0", (3, 4)),
            "missing then": lambda: context.infer_shapes(),
            "output then": lambda: context.get_tensor_shape("o0"),
            "beyond": lambda: context.set_input_shape("i0", (9, 4)),
            "after it": lambda: context.get_tensor_shape("i0"),
            "wrong fixed size": lambda: context.set_input_shape("i0", (3, 5)),
            "wrong rank": lambda: context.set_input_shape("i0", (3,)),
            "of an output": lambda: context.set_input_shape("o0", (3, 4)),
            "of no tensor": lambda: context.set_input_shape("i7", (3, 4)),
            "a list": lambda: context.set_input_shape("i0", [2, 4]),
            "unknown tensor": lambda: context.get_tensor_shape("i7"),
        },
    )


@probe
def shapes_of_static_inputs(bench: Bench) -> Any:
    half, scalar = bench.context(bench.engine("half")), bench.context(bench.engine("scalar"))
    return _each(
        bench,
        {
            "missing": lambda: half.infer_shapes(),
            "the same": lambda: half.set_input_shape("i0", (2, 3)),
            "another": lambda: half.set_input_shape("i0", (2, 4)),
            "output": lambda: half.get_tensor_shape("o0"),
            "scalar": lambda: scalar.set_input_shape("i0", ()),
            "its output": lambda: scalar.get_tensor_shape("o0"),
        },
    )


@probe
def shapes_that_do_not_go_together(bench: Bench) -> Any:
    context = bench.context(bench.engine("pair"))
    return _each(
        bench,
        {
            "first": lambda: context.set_input_shape("i0", (2, 3)),
            "half set": lambda: context.infer_shapes(),
            "second": lambda: context.set_input_shape("i1", (3, 2)),
            "together": lambda: context.infer_shapes(),
            "mended": lambda: context.set_input_shape("i1", (2, 3)),
            "then": lambda: context.infer_shapes(),
        },
    )


@probe
def addresses(bench: Bench) -> Any:
    context = bench.context(bench.engine("affine"))
    address = bench.gpu.allocate(256)
    return _each(
        bench,
        {
            "input": lambda: context.set_tensor_address("i0", address),
            "is it": lambda: context.get_tensor_address("i0") == address,
            "output": lambda: context.set_tensor_address("o0", address),
            "null input": lambda: context.set_tensor_address("i0", 0),
            "null output": lambda: context.set_tensor_address("o0", 0),
            "no tensor": lambda: context.set_tensor_address("i7", address),
            "not aligned": lambda: context.set_tensor_address("i0", address + 4),
        },
    )


@probe
def runs_that_are_not_ready(bench: Bench) -> Any:
    stream, address = bench.gpu.stream(), bench.gpu.allocate(1024)
    engine = bench.engine("affine")
    shapeless, inputless, outputless = (bench.context(engine) for _ in range(3))
    for context in (inputless, outputless):
        context.set_input_shape("i0", (3, 4))
    shapeless.set_tensor_address("i0", address)
    shapeless.set_tensor_address("o0", address + 512)
    inputless.set_tensor_address("o0", address)
    outputless.set_tensor_address("i0", address)
    return _each(
        bench,
        {
            "no shape": lambda: shapeless.execute_async_v3(stream),
            "no input": lambda: inputless.execute_async_v3(stream),
            "no output": lambda: outputless.execute_async_v3(stream),
            "in order": lambda: bench.gpu.synchronize(stream),
        },
    )


@probe
def right_numbers(bench: Bench) -> Any:
    found = {}
    cases: dict[str, list[list[tuple[int, ...]]]] = {
        "affine": [[(1, 4)], [(8, 4)], [(3, 4)]],
        "pair": [[(2, 3), (2, 3)], [(8, 8), (8, 8)], [(1, 5), (1, 5)]],
        "half": [[(2, 3)]],
        "scalar": [[()]],
        "kinds": [[(4,)], [(16,)]],
        "wide": [[(1, 256)], [(64, 256)]],
    }
    for name, shapes in cases.items():
        context = bench.context(bench.engine(name))
        found[name] = [_outcome(lambda c=context, n=name, s=one: bench.run(c, n, s)) for one in shapes]
    return found


@probe
def another_profile_wants_its_shapes_anew(bench: Bench) -> Any:
    context, stream = bench.context(bench.engine("affine")), bench.gpu.stream()
    return _each(
        bench,
        {
            "small": lambda: bench.run(context, "affine", [(2, 4)]),
            "switch": lambda: context.set_optimization_profile_async(1, stream),
            "missing": lambda: context.infer_shapes(),
            "large": lambda: bench.run(context, "affine", [(32, 4)]),
            "small there": lambda: context.set_input_shape("i0", (2, 4)),
        },
    )


@probe
def empty_tensors(bench: Bench) -> Any:
    context, stream = bench.context(bench.engine("empty")), bench.gpu.stream()
    address = bench.gpu.allocate(256)

    def run(where: int) -> Any:
        taken = [context.set_tensor_address("i0", where), context.set_tensor_address("o0", where)]
        return [taken, context.execute_async_v3(stream), bench.gpu.synchronize(stream)]

    return _each(
        bench,
        {
            "shape": lambda: context.set_input_shape("i0", (0, 4)),
            "output": lambda: context.get_tensor_shape("o0"),
            "some address": lambda: run(address),
            "no address": lambda: run(0),
        },
    )


@probe
def outputs_of_unknown_size(bench: Bench) -> Any:
    trt, gpu = bench.trt, bench.gpu
    context = bench.context(bench.engine("nonzero"))
    calls: list[Any] = []
    place = gpu.allocate(4096)

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            calls.append(["allocate", name, size, alignment])
            return place

        def notify_shape(self, name: str, shape: Any) -> None:
            calls.append(["shape", name, list(shape)])

    allocator = Allocator()
    data = np.array([0, 5, 0, 7], np.float32)
    address = gpu.allocate(256)
    gpu.write(address, data)
    return _each(
        bench,
        {
            "shape": lambda: context.set_input_shape("i0", (4,)),
            "missing": lambda: context.infer_shapes(),
            "output": lambda: context.get_tensor_shape("o0"),
            "at most": lambda: context.get_max_output_size("o0"),
            "allocator": lambda: context.set_output_allocator("o0", allocator),
            "input": lambda: context.set_tensor_address("i0", address),
            "run": lambda: context.execute_async_v3(gpu.stream()),
            "in order": lambda: gpu.synchronize(gpu.stream()),
            "calls": lambda: calls,
            "values": lambda: gpu.read(place, (1, 2), np.int32).tolist(),
        },
    )


@probe
def a_profiler_hears_of_layers(bench: Bench) -> Any:
    trt = bench.trt
    context = bench.context(bench.engine("affine"))
    heard: list[tuple[str, float]] = []

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer: str, milliseconds: float) -> None:
            heard.append((layer, milliseconds))

    profiler = Profiler()
    context.profiler = profiler
    ran = bench.run(context, "affine", [(2, 4)])
    return {"ran": ran["ran"], "right": ran["right"], "heard": len(heard) > 0, "kept": context.profiler is not None}


@probe
def memory_is_an_address(bench: Bench) -> Any:
    engine = bench.engine("wide")
    context = engine.create_execution_context_without_device_memory()
    address = bench.gpu.allocate(max(engine.device_memory_size, 256))
    return _each(
        bench,
        {
            "given": lambda: setattr(context, "device_memory", address),
            "read": lambda: context.device_memory,
            "not aligned": lambda: setattr(context, "device_memory", address + 8),
            "null": lambda: setattr(context, "device_memory", 0),
        },
    )
