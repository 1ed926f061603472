"""Record how a real TensorRT answers the calls of trtbuild's runtime, for the fake TensorRT of the tests.

    python -m benchmarks.gpu_record --out FILE      # writes the answers of the library into FILE
    python -m benchmarks.gpu_record --check FILE    # prints how its answers differ from FILE; exits with 1 if they differ
    python -m benchmarks.gpu_record --fake …        # asks the fake TensorRT instead of the library

The library is `tensorrt` 8.6. A recording needs a GPU and NumPy, but no torch. The folder tests/runtime/fake_tensorrt has
the engines, the questions, and the answers that the fake must give (recording.json). A *probe* is the function that asks
one question. Its argument is a `Bench`: the library, the engines' plans and a GPU.

The library runs in a child process, which writes each answer immediately. If a question crashes the process, the recording
names the call that crashed it, and the next question goes to a new process. A question that may leave the GPU or the
library in an undefined state gets a separate process.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.fake_tensorrt import probes
from tests.runtime.fake_tensorrt.samples import SAMPLES, Sample

SCHEMA = "trtbuild.tensorrt-answers/1"
_DTYPES = {"float32": "FLOAT", "float16": "HALF", "int32": "INT32", "bool": "BOOL"}
#: The question, its next call and its answers so far, if no call was noted (`_note_call`).
_NO_CALL: tuple[str, str, dict[str, Any]] = "", "", {}
#: The recorded status of a process that did not end in time, as the program `timeout` returns it.
_TIMED_OUT = 124


class Driver:
    """The CUDA driver, called through ctypes. It implements `probes.Gpu`."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._check(self._cuda.cuInit(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._cuda.cuCtxSetCurrent(context))
        name = ctypes.create_string_buffer(128)
        self._check(self._cuda.cuDeviceGetName(name, 128, device))
        version = ctypes.c_int()
        self._check(self._cuda.cuDriverGetVersion(ctypes.byref(version)))
        self.name, self.version = name.value.decode(), version.value
        stream = ctypes.c_void_p()
        self._check(self._cuda.cuStreamCreate(ctypes.byref(stream), 1))
        self._stream = int(stream.value or 0)

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA error {error}")

    def allocate(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        self._check(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes)))
        return address.value

    def write(self, address: int, data: Any) -> None:
        data = np.ascontiguousarray(data)
        if data.nbytes:
            pointer = ctypes.c_void_p(data.ctypes.data)
            self._check(self._cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), pointer, ctypes.c_size_t(data.nbytes)))

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        data = np.empty(shape, dtype)
        if data.nbytes:
            pointer = ctypes.c_void_p(data.ctypes.data)
            self._check(self._cuda.cuMemcpyDtoH_v2(pointer, ctypes.c_uint64(address), ctypes.c_size_t(data.nbytes)))
        return data

    def stream(self) -> int:
        return self._stream

    def synchronize(self, stream: int) -> str:
        error = self._cuda.cuStreamSynchronize(ctypes.c_void_p(stream))
        return f"CUDA error {error}" if error else ""


def build(trt: Any, builder: Any, sample: Sample) -> bytes:
    """Return the plan of a sample, built with TensorRT 8.6's network API.

    All samples share `builder`, because creating a builder takes seconds.
    """
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    config = builder.create_builder_config()
    config.set_tactic_sources(0)
    config.clear_flag(trt.BuilderFlag.TF32)
    config.builder_optimization_level = 0  # the speed of the engine does not matter
    if any(dtype == "float16" for dtype, _ in sample.inputs):
        config.set_flag(trt.BuilderFlag.FP16)
    if sample.shared and hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    inputs = [
        network.add_input(f"i{index}", getattr(trt.DataType, _DTYPES[dtype]), shape)
        for index, (dtype, shape) in enumerate(sample.inputs)
    ]
    outputs = sample.network(trt, network, inputs)
    for index, (tensor, (dtype, _)) in enumerate(zip(outputs, sample.outputs, strict=True)):
        tensor.name = f"o{index}"
        network.mark_output(tensor)
        tensor.dtype = getattr(trt.DataType, _DTYPES[dtype])
    for ranges in sample.profiles:
        profile = builder.create_optimization_profile()
        for index, (low, middle, high) in enumerate(ranges):
            set_range = profile.set_shape_input if index in sample.on_host else profile.set_shape
            set_range(f"i{index}", low, middle, high)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("TensorRT does not build a sample")
    return bytes(plan)


def ask_probes(folder: Path, names: list[str]) -> None:
    """Ask the questions `names`, and write the answers into `folder`. Its file ``now.json`` names the call in progress."""
    import tensorrt as trt

    gpu = Driver()
    bench = probes.Bench(trt, {}, gpu)
    logger = bench.logger()
    library = {"library": "tensorrt", "version": str(trt.__version__), "gpu": gpu.name, "driver": gpu.version}
    (folder / "by.json").write_text(json.dumps(library))
    builder = None
    for name, sample in SAMPLES.items():
        plan = folder / f"{name}.plan"
        if not plan.exists():
            _note_call(folder, f"build {name}")
            plan.write_bytes(b"")  # if the build crashes this process, the next process does not repeat it
            started = time.perf_counter()
            try:
                builder = builder or trt.Builder(logger)
                plan.write_bytes(build(trt, builder, sample))
            except Exception as error:  # continue with the other samples
                print(f"{name} does not build: {error}; {bench.logged[-2:]}", flush=True)
            print(f"built {name} in {time.perf_counter() - started:.1f} s", flush=True)
        bench.plans[name] = plan.read_bytes()
    del builder
    bench.runtime = trt.Runtime(logger)
    for name in names:
        bench.note = functools.partial(_note_call, folder, name)
        answer = probes.ask(bench, name)
        (folder / f"{name}.json").write_text(json.dumps(answer))
        print(f"{name}: {'raised ' + answer['text'] if 'raises' in answer else 'answered'}", flush=True)


def _note_call(folder: Path, name: str, call: str = "", before: dict[str, Any] | None = None) -> None:
    """Write the question, its next call and its answers so far to a file, in case the call crashes this process."""
    (folder / "now.json").write_text(json.dumps([name, call, before or {}]))


def record(timeout_s: float, worker: tuple[str, ...] = ("-m", "benchmarks.gpu_record")) -> dict[str, Any]:
    """Return all answers, and the library and GPU that gave them.

    `worker` has Python's arguments for a program that calls `ask_probes`.
    """
    answers: dict[str, Any] = {}
    # Usually, each process answers a question or builds a sample's engine before it crashes. The limit ends the loop if
    # processes keep crashing before that.
    most_processes = 2 * len(probes.PROBES) + len(SAMPLES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for _ in range(most_processes):
            remaining = [name for name in probes.PROBES if name not in answers]
            if not remaining:
                break
            batch = [name for name in remaining if name not in probes.ALONE] or remaining[:1]
            answers |= _ask_in_process(folder, batch, timeout_s, worker)
        by = _read_json(folder / "by.json", {})
    return {"schema": SCHEMA, "by": by, "answers": answers}


def _ask_in_process(folder: Path, names: list[str], timeout_s: float, worker: tuple[str, ...]) -> dict[str, Any]:
    """Ask the questions `names` in a new process. Returns question → answer.

    If the process crashes or takes too long, the answer to its last question names the call.
    """
    command = [sys.executable, *worker, "--worker", str(folder), *names]
    environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY"}
    try:
        status = subprocess.run(command, timeout=timeout_s, check=False, env=environment).returncode
    except subprocess.TimeoutExpired:
        status = _TIMED_OUT
    replies = {name: _read_json(folder / f"{name}.json", None) for name in names}
    answers = {name: answer for name, answer in replies.items() if answer is not None}
    question, call, before = _read_json(folder / "now.json", _NO_CALL)
    if status and question in names and question not in answers:
        answers[question] = probes.died(status, call, before)
        print(f"{question}: the process ended with {status} in {call or 'it'}", flush=True)
    return answers


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


class _NotedCalls:
    """The last call that a `Bench` has noted, and the answers before it."""

    def __init__(self) -> None:
        self.last: tuple[str, dict[str, Any]] = "", {}

    def note(self, call: str, before: dict[str, Any]) -> None:
        self.last = call, before


def record_fake() -> dict[str, Any]:
    """Return the fake's answers to the questions of `record`.

    The fake raises `ProcessEnded` where the real library crashes the process.
    """
    from tests.runtime.fake_gpu import FakeGpu
    from tests.runtime.fake_tensorrt import FakeTensorRT, ProcessEnded

    answers = {}
    for name in probes.PROBES:
        gpu = FakeGpu()
        trt = FakeTensorRT(gpu)
        calls = _NotedCalls()
        bench = probes.Bench(trt, {sample: trt.plan(sample) for sample in SAMPLES}, gpu, note=calls.note)
        bench.start()
        try:
            answers[name] = probes.ask(bench, name)
        except ProcessEnded as end:
            answers[name] = probes.died(end.status, *calls.last)
        gpu.synchronize_all()
    return {"schema": SCHEMA, "by": {"library": "the fake"}, "answers": answers}


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the differences of two recordings, one line of text each. `where` is the path to the compared values."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted({*old, *new}):
            found += differences(old.get(key), new.get(key), f"{where}/{key}")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for index, pair in enumerate(zip(old, new, strict=True))
            for line in differences(*pair, f"{where}/{index}")
        ]
    if where.endswith("/device_memory") and _is_workspace_size(old) and _is_workspace_size(new):
        return []  # each build may choose other kernels, which need other sizes
    return [] if old == new else [f"{where}: {old!r} was recorded, and the answer is {new!r}"]


def _is_workspace_size(value: Any) -> bool:
    """Return whether `value` can be a number of bytes that TensorRT needs. Such numbers are multiples of 512."""
    return isinstance(value, int) and value % 512 == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the answers into this file")
    parser.add_argument("--check", type=Path, help="compare the answers with those of this file")
    parser.add_argument("--fake", action="store_true", help="ask the fake TensorRT")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one process")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        ask_probes(options.worker, options.names)
        return 0
    recording = record_fake() if options.fake else record(options.timeout)
    recording = json.loads(json.dumps(recording))  # tuples become lists, as in the file to compare with
    if options.out:
        options.out.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")
    if options.check:
        lines = differences(json.loads(options.check.read_text())["answers"], recording["answers"])
        print("\n".join(lines) or f"as recorded: {len(recording['answers'])} answers")
        return 1 if lines else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
