"""The program of the processes of `benchmarks.gpu.lean`. Each process has one library that runs engines.

A process prints one JSON value on each line, so that a crash does not lose the lines before it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: The sizes of the inputs: batch, height and width. Some are the min or max of a profile.
POINTS = ((1, 16, 16), (2, 32, 32), (3, 48, 64), (4, 64, 64), (8, 128, 128), (11, 80, 240), (16, 256, 256))

_TIMED_POINT, _TIMED_CALLS = (8, 128, 128), 200
_WARM_UP_CALLS = 20

#: Objects that must not be freed, because TensorRT still uses them, or crashes when they are freed.
_KEPT: list[Any] = []


def run(packages: Path, results: Path, *, writes: bool = False, any_version: bool = False) -> Iterator[dict[str, Any]]:
    """Load each package, run it at all points, and compare the outputs with the files in `results`.

    Only the TensorRT version that built the package ``exact`` can run it. With `writes`, the outputs of this package are
    first written to these files. With `any_version`, trtbuild also tries runtimes whose versions NVIDIA's documentation
    does not name for these plans.

    Yields a value for each package: the library that ran it, the largest error of its outputs, and the seconds of a call;
    or the error of trtbuild. The last value has the imported TensorRT modules.
    """
    import trtbuild
    from benchmarks.gpu.lean.project import MODELS
    from trtbuild.driver.packages.machine import library_for
    from trtbuild.errors import TrtbuildError

    if any_version:
        from trtbuild.core.packages import engine_libraries

        # otherwise trtbuild refuses to run plans of TensorRT 8.6 with versions from 11 on
        engine_libraries._oldest_plan = lambda version: (8, 6)
    for name in MODELS:
        try:
            loaded = trtbuild.load(packages / name)
            module = loaded.module()
            library = str(library_for(loaded.target))
            if writes and name == "exact":
                _write_results(module, results)
            errors = [(_error_at(module, results, point), point) for point in POINTS]
            worst, where = max(errors)
            yield {"model": name, "library": library, "worst": worst, "where": where, "call_s": _call_s(module)}
        except TrtbuildError as error:
            yield {"model": name, "error": type(error).__name__, "text": error.text, "hint": error.hint}
    yield {"modules": sorted(name for name in sys.modules if name.startswith("tensorrt") and "." not in name)}


def _input(point: tuple[int, int, int]) -> Any:
    import numpy as np

    batch, height, width = point
    return np.random.default_rng(point).standard_normal((batch, 3, height, width)).astype(np.float32)


def _outputs(module: Any, point: tuple[int, int, int]) -> list[Any]:
    from trtbuild.runtime.memory.choosing import choose_memory

    memory = choose_memory(0)
    outputs = module(memory.upload(_input(point), "float32", memory.stream()))
    # Where torch is installed, the outputs are tensors on the GPU.
    return [(output.cpu() if hasattr(output, "cpu") else output).numpy() for output in outputs]


def _file(results: Path, point: tuple[int, int, int]) -> Path:
    return results / f"{'x'.join(map(str, point))}.npz"


def _write_results(module: Any, results: Path) -> None:
    import numpy as np

    for point in POINTS:
        np.savez(_file(results, point), *_outputs(module, point))


def _error_at(module: Any, results: Path, point: tuple[int, int, int]) -> float:
    """Return the largest max|a-b| / max|b| of all outputs (b: the stored output).

    The result is infinite if the number of outputs differs.
    """
    import numpy as np

    from benchmarks.gpu.subjects.without_torch import relative_error

    stored = np.load(_file(results, point))
    outputs = _outputs(module, point)
    if len(outputs) != len(stored.files):
        return float("inf")
    return max(relative_error(output, stored[name]) for output, name in zip(outputs, stored.files, strict=True))


def _call_s(module: Any) -> float:
    """Return the median seconds of a call, including the wait for its end."""
    from trtbuild.runtime.memory.choosing import choose_memory

    memory = choose_memory(0)
    stream = memory.stream()
    value = memory.upload(_input(_TIMED_POINT), "float32", stream)
    times = []
    for _ in range(_WARM_UP_CALLS + _TIMED_CALLS):
        started = time.perf_counter()
        module(value)
        memory.synchronize(stream)
        times.append(time.perf_counter() - started)
    return sorted(times[_WARM_UP_CALLS:])[_TIMED_CALLS // 2]


def answers(module: str, plan: Path, *, host_code: bool) -> Iterator[dict[str, Any]]:
    """Ask a library's bindings about a plan, without trtbuild. Yields each call with its result and its log lines.

    Most calls are also yielded before they are made, so that the last line of a crashed process names the call.
    """
    trt = importlib.import_module(module)
    log: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log.append(f"{str(severity).rpartition('.')[2]}: {text}")

    logger = Logger()
    runtime = trt.Runtime(logger)
    _KEPT.extend((logger, runtime))
    yield {"call": "Runtime", "value": trt.__version__, "log": list(log)}
    if any("createInferRuntime" in line for line in log):
        return  # `runtime` is an empty wrapper, and every use of this wrapper ends the process
    if host_code:
        runtime.engine_host_code_allowed = True
    log.clear()
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    yield {"call": "deserialize_cuda_engine", "value": engine is not None, "log": list(log)}
    if engine is None:
        return
    for name, call in _calls(trt, engine):
        log.clear()
        yield {"call": name, "value": "is called next"}
        try:
            value = repr(call())
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
        yield {"call": name, "value": value, "log": list(log)}


def _calls(trt: Any, engine: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the calls by which trtbuild reads properties of an engine and creates contexts in all TensorRT versions."""
    names = ("num_io_tensors", "num_optimization_profiles", "device_memory_size", "device_memory_size_v2")
    for name in names:
        yield name, lambda name=name: getattr(engine, name)  # type: ignore[misc]
    for name in ("get_device_memory_size_for_profile", "get_device_memory_size_for_profile_v2"):
        yield f"{name}(0)", lambda name=name: getattr(engine, name)(0)  # type: ignore[misc]
    for name in ("i0", "o0"):
        for method in ("get_tensor_dtype", "get_tensor_location", "get_tensor_mode", "is_shape_inference_io"):
            yield f"{method}({name})", lambda method=method, name=name: getattr(engine, method)(name)  # type: ignore[misc]
    yield "get_tensor_profile_shape(i0, 1)", lambda: engine.get_tensor_profile_shape("i0", 1)

    def describe_context(create: Callable[[], Any]) -> str | None:
        context = create()
        _KEPT.append(context)
        return None if context is None else f"a context with profile {context.active_optimization_profile}"

    for number in (1, 2):
        yield (
            f"create_execution_context_without_device_memory, context {number}",
            lambda: describe_context(lambda: engine.create_execution_context_without_device_memory()),
        )
        yield (
            f"create_execution_context(USER_MANAGED), context {number}",
            lambda: describe_context(
                lambda: engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
            ),
        )


def main(arguments: list[str]) -> None:
    command, *rest = arguments
    if command == "answers":
        module, plan, host_code = rest
        values = answers(module, Path(plan), host_code=host_code == "host_code")
    else:
        packages, results = map(Path, rest)
        values = run(packages, results, writes=command == "write", any_version=command == "run_any_version")
    for value in values:
        print(json.dumps(value), flush=True)
    os._exit(0)  # skips the cleanup of the libraries, which is not measured


if __name__ == "__main__":
    main(sys.argv[1:])
