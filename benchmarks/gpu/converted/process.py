"""``python -m benchmarks.gpu.converted.process MODEL.onnx…`` builds an engine for each model, and runs it with its cases.

The cases of a model are the files ``MODEL.*.npz`` in its folder: inputs, and the outputs of onnxruntime. The process prints
one JSON object for each output of each case. For a model without an engine, it prints an object with the key `refused`. For
a model that raises another error, the key is `failed`. Torch is not used.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: The largest allowed error of float32 models, and of models that compute in float16, relative to the largest magnitude.
TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2


class Gpu:
    """TensorRT, and the memory of the GPU."""

    def __init__(self) -> None:
        import tensorrt
        from cuda.bindings import runtime

        self.trt, self._cuda = tensorrt, runtime
        self.log = tensorrt.Logger(tensorrt.Logger.ERROR)

    def call(self, function: str, *arguments: Any) -> Any:
        status, *results = getattr(self._cuda, function)(*arguments)
        if int(status):
            raise RuntimeError(f"{function}: {status}")
        return results[0] if results else None

    def upload(self, array: npt.NDArray[Any]) -> int:
        """Copy an array to new memory. Returns the address. The memory is freed when the process ends."""
        address = int(self.call("cudaMalloc", max(array.nbytes, 1)))
        if array.nbytes:
            kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
            self.call("cudaMemcpy", address, array.ctypes.data, array.nbytes, kind)
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        array = np.empty(shape, dtype)
        if array.nbytes:
            kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self.call("cudaMemcpy", array.ctypes.data, address, array.nbytes, kind)
        return array

    def output_allocator(self) -> Any:
        """Return an allocator for one output. After the run, it has the address and the shape of the output.

        TensorRT knows some shapes only after the run."""
        gpu = self

        class Output(self.trt.IOutputAllocator):  # type: ignore[misc, name-defined]
            address: int = 0
            shape: tuple[int, ...] = ()

            def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
                self.address = int(gpu.call("cudaMalloc", max(size, 1)))
                return self.address

            def notify_shape(self, name: str, shape: Any) -> None:
                self.shape = tuple(shape)

        return Output()


def rows(gpu: Gpu, model: Path) -> Iterator[dict[str, Any]]:
    """Build an engine for a model, and compare its outputs with those of onnxruntime."""
    cases = [(file.name, dict(np.load(file))) for file in sorted(model.parent.glob(f"{model.stem}.*.npz"))]
    try:
        network, engine = _build(gpu, model.read_bytes(), [arrays for _, arrays in cases])
    except ValueError as error:
        yield {"model": model.stem, "refused": str(error)}
        return
    tolerance = HALF_TOLERANCE if _computes_in_float16(gpu, network) else TOLERANCE
    context = engine.create_execution_context()
    for name, arrays in cases:
        for output, actual in _run(gpu, engine, context, arrays).items():
            found = difference(actual, arrays[f"out:{output}"], tolerance)
            yield {"model": model.stem, "case": name, "output": output, **({"wrong": found} if found else {})}


def _build(gpu: Gpu, model: bytes, cases: list[dict[str, npt.NDArray[Any]]]) -> tuple[Any, Any]:
    """Return the network of a model, and its engine. Raises ValueError with the message of TensorRT."""
    trt = gpu.trt
    builder = trt.Builder(gpu.log)
    # TensorRT 10 and later have only networks with explicit batch, so the flag may be missing.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, gpu.log)
    if not parser.parse(model):
        raise ValueError(parser.get_error(0).desc())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.set_tactic_sources(0)
    config.clear_flag(trt.BuilderFlag.TF32)
    for number in range(network.num_inputs):
        tensor = network.get_input(number)
        if -1 in tensor.shape:
            shapes = sorted({case[f"in:{tensor.name}"].shape for case in cases})
            profile.set_shape(tensor.name, shapes[0], shapes[-1], shapes[-1])
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ValueError("TensorRT could not build an engine")
    return network, trt.Runtime(gpu.log).deserialize_cuda_engine(plan)


def _computes_in_float16(gpu: Gpu, network: Any) -> bool:
    """Whether a layer has a float16 result. Float32 outputs of such a model are as inexact as float16."""
    return any(
        network.get_layer(number).get_output(0).dtype == gpu.trt.float16
        for number in range(network.num_layers)
        if network.get_layer(number).num_outputs
    )


def _run(gpu: Gpu, engine: Any, context: Any, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    outputs = {}
    for number in range(engine.num_io_tensors):
        name = engine.get_tensor_name(number)
        if engine.get_tensor_mode(name) == gpu.trt.TensorIOMode.INPUT:
            # `np.ascontiguousarray` would give a scalar one axis
            value = np.asarray(arrays[f"in:{name}"], _dtype(gpu, engine, name), order="C")
            context.set_input_shape(name, value.shape)
            context.set_tensor_address(name, gpu.upload(value))
        else:
            outputs[name] = gpu.output_allocator()
            context.set_output_allocator(name, outputs[name])
    if not context.execute_async_v3(0):
        raise RuntimeError("execute_async_v3 failed")
    gpu.call("cudaDeviceSynchronize")
    return {
        name: gpu.download(output.address, output.shape, _dtype(gpu, engine, name)) for name, output in outputs.items()
    }


def _dtype(gpu: Gpu, engine: Any, name: str) -> Any:
    return gpu.trt.nptype(engine.get_tensor_dtype(name))


def difference(actual: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float) -> str:
    """Return how two arrays differ, or an empty text if they agree.

    Integers must be equal. Floats may differ by `tolerance`, relative to the largest finite magnitude in `expected`.
    """
    if actual.shape != expected.shape:
        return f"the shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind != "f":
        wrong = np.flatnonzero(actual.astype(expected.dtype) != expected)
    else:
        got, wanted = actual.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(wanted)
        scale = max(np.abs(wanted[finite]).max(initial=0.0), 1e-30)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - wanted) <= tolerance * scale
        wrong = np.flatnonzero(~(near | (got == wanted) | (np.isnan(got) & np.isnan(wanted))))
    if not wrong.size:
        return ""
    places = wrong[:4]
    return (
        f"{wrong.size} of {expected.size} elements, at {places.tolist()}: {actual.ravel()[places].tolist()}, "
        f"not {expected.ravel()[places].tolist()}"
    )


if __name__ == "__main__":
    machine = Gpu()
    for path in map(Path, sys.argv[1:]):
        try:
            for row in rows(machine, path):
                print(json.dumps(row), flush=True)
        except Exception as error:  # the other models still run
            print(json.dumps({"model": path.stem, "failed": f"{type(error).__name__}: {error}"}), flush=True)
