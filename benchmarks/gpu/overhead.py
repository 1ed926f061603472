"""Measure the overhead of a package's call over a bare loop, and the memory that the call allocates.

The bare loop uses the same engine with all shapes set and all buffers bound, and calls only ``execute_async_v3``. The
time of both is how long they keep the host busy (`benchmarks.gpu.timing.issue`). torch's allocator counts the
allocations: after the first calls, a call allocates only its outputs, and no memory from the system.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.figure import Check, Limit, Row, Value
from benchmarks.gpu.cases import Case, cases, flat
from benchmarks.gpu.host import Host
from benchmarks.gpu.timing import issue

#: The overhead of an engine call over the bare loop, in microseconds.
BOUND_US = 20.0
#: Models with one engine. One has a fixed shape, one changes its shape from call to call, and one has two profiles.
MODELS = ("any_image", "class_token", "attention", "detector")


def rows(host: Host) -> Iterator[Row]:
    """Two rows for the time and one for the allocations of each model."""
    for case in cases(host.examples):
        if case.name in MODELS and case.package.exists():
            yield from _measured(case, host)


def _measured(case: Case, host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    loaded = trtbuild.load(case.package)
    module = loaded.module()
    small, large = case.points(0)[0], case.points(0)[1]
    args, kwargs = case.inputs(small)
    large_args, large_kwargs = case.inputs(large)
    side = torch.cuda.Stream()  # not the legacy default stream, on which TensorRT waits for the device
    with torch.inference_mode(), torch.cuda.stream(side):
        sets = [
            (args + list(kwargs.values()), flat(module(*args, **kwargs))),
            (large_args + list(large_kwargs.values()), flat(module(*large_args, **large_kwargs))),
        ]
        bare = Bare((case.package / _plan(loaded)).read_bytes(), sets, side.cuda_stream)
        candidates: dict[str, Callable[[], object]] = {
            "bare": bare.run,
            "bare, two shapes in turns": bare.run_other,
            "package": partial(module, *args, **kwargs),
            "two shapes in turns": _alternating(
                [partial(module, *args, **kwargs), partial(module, *large_args, **large_kwargs)]
            ),
        }
        times = issue(candidates, torch.cuda.synchronize, host.repeats * 5)
    for name, bare_name in (("package", "bare"), ("two shapes in turns", "bare, two shapes in turns")):
        overhead = times[name] - times[bare_name]
        note = f"{times[name]:.1f} µs a call, bare {times[bare_name]:.1f} µs"
        bound = BOUND_US if name == "package" else None
        yield Limit(f"{case.name}: {name}, over a bare loop", Value("host time", round(overhead, 1), "µs"), bound, note)
    yield _allocations(case, module, args, kwargs)


def _allocations(case: Case, module: Any, args: list[Any], kwargs: dict[str, Any]) -> Row:
    import torch

    calls = 100
    with torch.inference_mode():
        outputs = 0
        for _ in range(10):
            outputs = len(flat(module(*args, **kwargs)))
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()
        for _ in range(calls):
            module(*args, **kwargs)
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
    allocations = after["allocation.all.allocated"] - before["allocation.all.allocated"]
    segments = after["segment.all.allocated"] - before["segment.all.allocated"]
    found = (
        f"{calls} calls: {allocations} allocations for {calls * outputs} outputs, {segments} segments from the system"
    )
    return Check(
        f"{case.name}: a call allocates its outputs alone", allocations == calls * outputs and segments == 0, found
    )


def _alternating(calls: list[Callable[[], object]]) -> Callable[[], object]:
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _plan(loaded: Any) -> str:
    (part,) = loaded.target.partitions.partitions
    return str(loaded.target.engines[part.name])


class Bare:
    """One context of an engine in its first profile; `sets` are two sets of inputs and outputs with different shapes."""

    def __init__(self, plan: bytes, sets: Sequence[tuple[list[Any], list[Any]]], stream: int) -> None:
        import tensorrt as trt

        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = engine = self._runtime.deserialize_cuda_engine(plan)
        self._context = context = engine.create_execution_context()
        context.set_optimization_profile_async(0, stream)
        names = [engine.get_tensor_name(k) for k in range(engine.num_io_tensors)]
        ins = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        outs = [name for name in names if name not in ins]
        self._ins = ins
        self._sets = [_by_name(ins, inputs) | _by_name(outs, outputs) for inputs, outputs in sets]
        self._other = itertools.cycle([self._sets[1], self._sets[0]])
        self._execute, self._stream = context.execute_async_v3, stream
        self._bind(self._sets[0])
        if context.infer_shapes():
            raise RuntimeError("the bare loop has not set all shapes")
        self._is_first = True

    def run(self) -> None:
        """Run at the first shapes, with everything bound already."""
        if not self._is_first:
            self._bind(self._sets[0])
            self._is_first = True
        self._execute(self._stream)

    def run_other(self) -> None:
        """Run at other shapes than the last time: set the shapes and the addresses first."""
        self._is_first = False
        self._bind(next(self._other))
        self._execute(self._stream)

    def _bind(self, values: Mapping[str, Any]) -> None:
        for name in self._ins:
            self._context.set_input_shape(name, tuple(values[name].shape))
        for name, value in values.items():
            self._context.set_tensor_address(name, value.data_ptr())


def _by_name(names: list[str], values: list[Any]) -> dict[str, Any]:
    """Bindings are i0, i1, … and o0, o1, … in the order of the partition's inputs and outputs."""
    return dict(zip(sorted(names, key=lambda name: int(name[1:])), values, strict=True))
