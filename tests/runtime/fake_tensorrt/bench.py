"""Probes of a TensorRT library: a probe is a function that makes calls with a `Bench`, and returns an answer as plain JSON.

An answer contains the results or exceptions of the calls, and the errors and warnings that the library logged. If a call
ends the process, benchmarks/gpu_record.py creates the answer with `died`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tests.runtime.fake_tensorrt.samples import SAMPLES, numpy_type


class Gpu(Protocol):
    """A GPU. `synchronize` returns the text of an error, or an empty text."""

    def allocate(self, size_bytes: int) -> int: ...
    def write(self, address: int, data: Any) -> None: ...
    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any: ...
    def stream(self) -> int: ...
    def synchronize(self, stream: int) -> str: ...


@dataclass
class Bench:
    """The real or the fake library, a plan (serialized engine) of each sample, and a real or fake GPU."""

    trt: Any
    plans: dict[str, bytes]
    gpu: Gpu
    logged: list[tuple[str, str]] = field(default_factory=list)
    #: `each` calls it before each call, with the name of the call and the earlier answers. `ask` passes an empty name.
    note: Callable[[str, dict[str, Any]], None] = lambda name, answers: None

    def engine(self, sample: str) -> Any:
        return self.runtime.deserialize_cuda_engine(self.plans[sample])

    def bare_context(self, engine: Any) -> Any:
        """Return a context without memory, with the profile that TensorRT chooses."""
        return engine.create_execution_context_without_device_memory()

    def memory(self, engine: Any) -> int:
        """Return the address of activation memory, aligned to 512 bytes but not to 1024."""
        address = self.gpu.allocate(engine.device_memory_size + 2048)
        return address + -address % 1024 + 512

    def context(self, engine: Any, profile: int = 0) -> Any:
        """Return a context with memory and `profile`, which is set only if needed: setting it may end the process."""
        context = self.bare_context(engine)
        context.device_memory = self.memory(engine)
        if context.active_optimization_profile != profile:
            assert context.set_optimization_profile_async(profile, self.gpu.stream())
        return context

    def logger(self) -> Any:
        trt, logged = self.trt, self.logged

        class Listener(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:
                if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                    logged.append((str(severity).rpartition(".")[2], text))

        return Listener()

    def start(self) -> None:
        self.runtime = self.trt.Runtime(self.logger())

    def fill(self, dtype: str, shape: tuple[int, ...]) -> tuple[int, Any]:
        """Write the values -1, 0, 1, … to new memory. Return the address and the values."""
        count = int(np.prod(shape))
        data = (np.arange(count) - 1).reshape(shape).astype(numpy_type(dtype))
        address = self.gpu.allocate(max(data.nbytes, 256))
        self.gpu.write(address, data)
        return address, data

    def run(self, context: Any, sample: str, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
        """Set all shapes and addresses, run, and compare with NumPy."""
        spec = SAMPLES[sample]
        inputs = []
        for index, (shape, (dtype, _)) in enumerate(zip(shapes, spec.inputs, strict=True)):
            address, data = self.fill(dtype, shape)
            assert context.set_input_shape(f"i{index}", shape)
            assert context.set_tensor_address(f"i{index}", address)
            inputs.append(data)
        expected = spec.compute(*inputs)
        outputs = []
        for index, (array, (dtype, _)) in enumerate(zip(expected, spec.outputs, strict=True)):
            address = self.gpu.allocate(max(array.nbytes, 256))
            assert context.set_tensor_address(f"o{index}", address)
            outputs.append((address, tuple(context.get_tensor_shape(f"o{index}")), dtype))
        ran = context.execute_async_v3(self.gpu.stream())
        failed = self.gpu.synchronize(self.gpu.stream())
        right = [
            bool(np.array_equal(self.gpu.read(address, shape, numpy_type(dtype)), array))
            for (address, shape, dtype), array in zip(outputs, expected, strict=True)
        ]
        return {"ran": ran, "failed": failed, "shapes": [list(shape) for _, shape, _ in outputs], "right": right}

    def each(self, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """Make the calls in order. Return the result or exception of each call, and its log messages."""
        answers: dict[str, Any] = {}
        for name, call in calls.items():
            self.note(name, answers)
            before = len(self.logged)
            answer = outcome(call)
            answers[name] = {**answer, "said": [[severity, normal(text)] for severity, text in self.logged[before:]]}
        return answers


PROBES: dict[str, Callable[[Bench], Any]] = {}
#: Names of probes that each need a separate process, because the library's state after them is unknown.
ALONE: set[str] = set()


def probe(function: Callable[[Bench], Any]) -> Callable[[Bench], Any]:
    PROBES[function.__name__] = function
    return function


def probe_alone(function: Callable[[Bench], Any]) -> Callable[[Bench], Any]:
    ALONE.add(function.__name__)
    return probe(function)


def ask(bench: Bench, name: str) -> dict[str, Any]:
    """Return the answer of a probe."""
    bench.logged.clear()
    bench.note("", {})
    answer = outcome(lambda: PROBES[name](bench))
    return {**answer, "said": [[severity, normal(text)] for severity, text in bench.logged]}


def died(status: int, call: str, before: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a probe whose call `call` ended the process. `before` has the answers of earlier calls."""
    return {"died": status, "in": call, "before": before} if call else {"died": status}


def normal(text: str) -> str:
    """Return a message with single spaces and without addresses, which differ from run to run."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return re.sub(r"\s+", " ", text).strip()


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """Make a call, and return its result or its exception as plain values."""
    try:
        return {"returns": _plain(call())}
    except Exception as error:
        return {"raises": type(error).__name__, "text": normal(str(error)).partition(" Invoked with")[0]}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):  # TensorRT's Dims have no __iter__
        return [_plain(entry) for entry in list(value)]
    return str(value)
