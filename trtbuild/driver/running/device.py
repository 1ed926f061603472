"""Run a loaded package on any device, with inputs and outputs in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from trtbuild.core.model.custom_operators import IMPORT_ADVICE
from trtbuild.driver.packages.custom_plugins import PLUGINS_ADVICE
from trtbuild.driver.packages.loading import load_package
from trtbuild.driver.running.host_tensors import HostTensor, numpy_can_hold, require_numpy
from trtbuild.errors import NoFittingTarget, OperatorMissing, PluginsNotLoaded, UsageError
from trtbuild.runtime.memory.device_memory import Memory
from trtbuild.runtime.packages.package import Package


class PackageOnDevice:
    """A package that is loaded on a device. It is a context manager, which unloads the package at the end of the block."""

    def __init__(
        self,
        package: Package,
        *,
        device: str | None,
        target: str | None,
        import_operators: bool = False,
        load_plugins: bool = False,
    ) -> None:
        try:
            self.loaded = load_package(
                package,
                device=device,
                target=target,
                import_operators=import_operators,
                load_plugins=load_plugins,
            )
        except (NoFittingTarget, OperatorMissing, PluginsNotLoaded) as error:
            # the hints name arguments of `trtbuild.load`; people at the command line need flags
            error.hint = error.hint and error.hint.replace('pass device="cpu"', "use --device cpu").replace(
                'device="cpu"', "--device cpu"
            ).replace(IMPORT_ADVICE, "use --import-operators").replace(PLUGINS_ADVICE, "use --load-plugins")
            raise
        self._runner = self.loaded.runner()
        if package.index.state:
            self._runner = self._runner.session(advances=False)  # every call begins with the same state
        self._memory = self._runner.memory

    def put(self, tensor: HostTensor) -> Any:
        """Copy a tensor to the device, as an input for `run`."""
        return copy_to_memory(self._memory, tensor)

    def get(self, array: Any) -> HostTensor:
        """Copy an output to host memory. Raises UsageError if `HostTensor` does not support the dtype."""
        name = _dtype_name(array.dtype)
        if not numpy_can_hold(name):
            raise UsageError(
                f"an output is {name}, a dtype that numpy does not have",
                hint="use trtbuild.load(PACKAGE) in a program, which returns a tensor of PyTorch",
            )
        if self._memory is not None:
            with self._memory.on_device():
                return HostTensor(name, self._memory.download(array))
        import torch

        if array.dtype is torch.bfloat16:
            return HostTensor(name, array.contiguous().view(torch.int16).numpy().view("uint16"))
        return HostTensor(name, array.resolve_conj().resolve_neg().numpy())

    def run(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run the package, and return its outputs in the order of the model. `inputs` maps input names to arrays.

        On a GPU, the computation may still run when this method returns.
        """
        return self._runner.flat_outputs((), dict(inputs))

    def wait(self) -> None:
        """Wait until the computations of `run` on this thread's stream have ended."""
        if self._memory is not None:
            with self._memory.on_device():
                self._memory.synchronize(self._memory.stream())

    def __enter__(self) -> PackageOnDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loaded.close()


def copy_to_memory(memory: Memory | None, tensor: HostTensor) -> Any:
    """Copy a tensor to device memory. If `memory` is None (the CPU), the result is a PyTorch tensor."""
    data = tensor.data if tensor.data.flags.writeable else require_numpy().array(tensor.data)
    if memory is not None:
        with memory.on_device():
            return memory.upload(data, tensor.dtype, memory.stream())
    import torch  # the reference program needs it anyway

    result = torch.from_numpy(data.view("int16") if tensor.dtype == "bfloat16" else data)
    return result.view(torch.bfloat16) if tensor.dtype == "bfloat16" else result


def _dtype_name(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]
