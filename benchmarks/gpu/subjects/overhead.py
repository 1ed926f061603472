"""Compare a package's call with a bare loop, and count the allocations of the call.

The bare loop runs the same engine by calls of ``execute_async_v3`` only. Shapes and buffers are set before the loop starts.
If two shapes take turns, each call of the loop sets the shapes and buffers again.

The measured time is the time for which a call keeps the host busy (`benchmarks.gpu.timing.host_times_us`). After ten
calls, a call must allocate only its outputs, from memory that torch's allocator already has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.figure import Check, Measurement, Row, Value
from benchmarks.gpu.cases import Case, cases, output_tensors
from benchmarks.gpu.host import Host
from benchmarks.gpu.timing import host_times_us

#: The largest allowed difference between a package's call and the bare loop at equal shapes, in µs.
BOUND_US = 20.0
#: Models with one engine each. `detector` has two profiles and two outputs.
MODELS = ("any_image", "class_token", "attention", "detector")


def rows(host: Host) -> Iterator[Row]:
    for case in cases(host.examples):
        if case.name in MODELS and case.package.exists():
            yield from _measure(case, host)


def _measure(case: Case, host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    loaded = trtbuild.load(case.package)
    module = loaded.module()
    min_point, opt_point = case.points(count=0)[:2]
    args, kwargs = case.inputs(min_point)
    opt_args, opt_kwargs = case.inputs(opt_point)
    stream = torch.cuda.Stream()  # on the legacy default stream, TensorRT would wait for the device
    with torch.inference_mode(), torch.cuda.stream(stream):
        sets = [
            (args + list(kwargs.values()), output_tensors(module(*args, **kwargs))),
            (opt_args + list(opt_kwargs.values()), output_tensors(module(*opt_args, **opt_kwargs))),
        ]
        bare = BareLoop((case.package / _plan_path(loaded)).read_bytes(), sets, stream.cuda_stream)
        candidates: dict[str, Callable[[], object]] = {
            "bare": bare.run,
            "bare, two shapes in turns": bare.run_at_next_shapes,
            "package": partial(module, *args, **kwargs),
            "two shapes in turns": _alternating(
                [partial(module, *args, **kwargs), partial(module, *opt_args, **opt_kwargs)]
            ),
        }
        times = host_times_us(candidates, torch.cuda.synchronize, host.repeats * 5)
    for name, bare_name in (("package", "bare"), ("two shapes in turns", "bare, two shapes in turns")):
        overhead = times[name] - times[bare_name]
        note = f"{times[name]:.1f} µs a call, bare {times[bare_name]:.1f} µs"
        bound = BOUND_US if name == "package" else None
        yield Measurement(
            f"{case.name}: {name}, over a bare loop",
            Value("host time", round(overhead, 1), "µs"),
            bound=bound,
            note=note,
        )
    yield _allocations(case, module, args, kwargs)


def _allocations(case: Case, module: Any, args: list[Any], kwargs: dict[str, Any]) -> Row:
    import torch

    calls = 100
    with torch.inference_mode():
        outputs = 0
        for _ in range(10):
            outputs = len(output_tensors(module(*args, **kwargs)))
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
    """Return a function that calls the functions `calls` in turns."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _plan_path(loaded: Any) -> str:
    """Return the path, inside the package, of the only plan of the loaded target."""
    (part,) = loaded.target.partitions.partitions
    return str(loaded.target.engines[part.name])


class BareLoop:
    """Runs an engine in its first profile. `sets` are two pairs (inputs, outputs) with different shapes."""

    def __init__(self, plan: bytes, sets: Sequence[tuple[list[Any], list[Any]]], stream: int) -> None:
        import tensorrt as trt

        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = engine = self._runtime.deserialize_cuda_engine(plan)
        self._context = context = engine.create_execution_context()
        context.set_optimization_profile_async(0, stream)
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        ins = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        outs = [name for name in names if name not in ins]
        self._ins = ins
        self._sets = [_by_name(ins, inputs) | _by_name(outs, outputs) for inputs, outputs in sets]
        self._sets_in_turn = itertools.cycle([self._sets[1], self._sets[0]])
        self._execute, self._stream = context.execute_async_v3, stream
        self._bind(self._sets[0])
        if context.infer_shapes():
            raise RuntimeError("the bare loop has not set all shapes")
        self._first_set_is_bound = True

    def run(self) -> None:
        """Run at the shapes of the first set."""
        if not self._first_set_is_bound:
            self._bind(self._sets[0])
            self._first_set_is_bound = True
        self._execute(self._stream)

    def run_at_next_shapes(self) -> None:
        """Set the shapes and addresses of the next set, and run."""
        self._first_set_is_bound = False
        self._bind(next(self._sets_in_turn))
        self._execute(self._stream)

    def _bind(self, values: Mapping[str, Any]) -> None:
        for name in self._ins:
            self._context.set_input_shape(name, tuple(values[name].shape))
        for name, value in values.items():
            self._context.set_tensor_address(name, value.data_ptr())


def _by_name(names: list[str], values: list[Any]) -> dict[str, Any]:
    """Return tensor name → value. The number in a name, such as i0 or o1, is the position of its value."""
    in_order = sorted(names, key=lambda name: int(name[1:]))
    return dict(zip(in_order, values, strict=True))
