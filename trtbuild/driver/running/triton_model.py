"""The model that Triton's Python backend runs for a package (`trtbuild.driver.outputs.triton.served`).

Triton passes tensors as DLPack (``triton_python_backend_utils.Tensor``). The package is beside ``model.py``.

Rules
1. A model on a GPU uses inputs on this GPU without a copy, and copies inputs in host memory to it. A request with an input
   on another GPU gets an error. Outputs stay on the GPU, and Triton fetches them. A model on the CPU copies inputs from
   GPUs to host memory.
2. Requests run one after another, each with the profile that `runtime.packages.choice` chooses. A request that no profile
   accepts gets an error, and the other requests are answered.
3. A scalar of the model has the shape [1] in requests and responses, because Triton has no scalars.
4. A response is returned when its computation is complete, because Triton does not know trtbuild's CUDA streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from trtbuild.core.packages.package_index import PackedTensor
from trtbuild.driver.outputs.triton.served import PACKAGE_FOLDER
from trtbuild.driver.packages.loading import load
from trtbuild.driver.running.device import copy_to_memory
from trtbuild.driver.running.host_tensors import HostTensor
from trtbuild.errors import TrtbuildError


class TritonPythonModel:
    """The interface of triton-inference-server/python_backend: ``initialize``, ``execute``, ``finalize``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the package on the device of this instance. Raises TrtbuildError, which Triton shows."""
        self._utils: Any = import_module("triton_python_backend_utils")  # exists in the backend's process only
        folder = Path(args["model_repository"]) / args["model_version"]
        on_gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
        # Triton runs the programs of a model repository anyway, so the code of operators and plugins adds no risk
        self._loaded = load(folder / Path(PACKAGE_FOLDER).name, device=device, import_operators=True, load_plugins=True)
        self._runner = self._loaded.runner()
        self._memory = self._runner.memory
        self._loaded.warmup()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def finalize(self) -> None:
        self._loaded.close()

    def _response(self, request: Any) -> Any:
        utils, loaded = self._utils, self._loaded
        try:
            inputs = {
                entry.name: self._input(utils.get_input_tensor_by_name(request, entry.name), entry)
                for entry in loaded.inputs
            }
            results = self._runner.flat_outputs((), inputs)
            outputs = [
                utils.Tensor.from_dlpack(entry.name, self._output(result, entry))
                for entry, result in zip(loaded.outputs, results, strict=True)
            ]
            if self._memory is not None:
                with self._memory.on_device():
                    self._memory.synchronize(self._memory.stream())
        except (TrtbuildError, ValueError, RuntimeError) as error:
            return utils.InferenceResponse(output_tensors=[], error=utils.TritonError(str(error)))
        return utils.InferenceResponse(output_tensors=outputs)

    def _input(self, tensor: Any, entry: PackedTensor) -> Any:
        memory, is_scalar = self._memory, not entry.shape
        if memory is None:
            cpu_tensor = _torch_tensor(tensor).cpu()
            return cpu_tensor.reshape(()) if is_scalar else cpu_tensor
        if tensor.is_cpu():
            data = _bfloat16_bits(tensor) if entry.dtype == "bfloat16" else tensor.as_numpy()
            return copy_to_memory(memory, HostTensor(entry.dtype, data.reshape(()) if is_scalar else data))
        if not is_scalar:
            return tensor
        with memory.on_device():
            array = memory.adopt(tensor, entry.name, memory.stream())
            return memory.view(array, (), memory.dtype(entry.dtype))

    def _output(self, result: Any, entry: PackedTensor) -> Any:
        """Return the result as Triton accepts it: row-major, and with at least one axis."""
        memory, is_scalar = self._memory, not entry.shape
        if memory is None:
            return result.reshape((1,)) if is_scalar else result.contiguous()
        with memory.on_device():
            if is_scalar:
                return memory.view(result, (1,), memory.dtype(entry.dtype))
            return memory.as_contiguous(result, memory.stream())


def _torch_tensor(tensor: Any) -> Any:
    import torch

    return torch.from_dlpack(tensor)


def _bfloat16_bits(tensor: Any) -> Any:
    """Return the bits of a bfloat16 tensor as uint16, because NumPy has no bfloat16."""
    import torch

    return _torch_tensor(tensor).view(torch.int16).numpy().view("uint16")
