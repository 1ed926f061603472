"""The reference program of a model with an ONNX source: onnxruntime computes its only partition, on the CPU.

Rules
1. The package has the converted model. Its weights are external, with the names ``w0…``, and are bound here once.
2. Values are tensors on the CPU; onnxruntime reads their memory. Types that NumPy does not have are passed as bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.errors import PackageDamaged, ToolchainMissing

if TYPE_CHECKING:
    import torch

    from trtbuild.runtime.calls.call import Call

#: torch's name of a type that NumPy does not have → its onnx.TensorProto.DataType, and an integer type of the same size.
_AS_BITS = {"bfloat16": (16, "int16")}


def is_onnx(path: str) -> bool:
    """Whether a package's program is an ONNX model instead of a PyTorch program. `path` is its path in the package."""
    return path.endswith(".onnx")


class OnnxPart:
    """A partition that onnxruntime computes. `weights` are the partition's weights, in order. Inputs and outputs are CPU
    tensors."""

    def __init__(self, program: bytes | memoryview, weights: Sequence[torch.Tensor], description: str) -> None:
        """`description` names the part in error messages. Raises ToolchainMissing without onnxruntime, and PackageDamaged
        for a model that onnxruntime rejects."""
        try:
            import onnxruntime
        except (ImportError, OSError) as error:
            raise ToolchainMissing(
                f"the reference of {description} is an ONNX model, and onnxruntime cannot be imported: {error}",
                hint="pip install onnxruntime",
            ) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        named = {f"w{number}": weight for number, weight in enumerate(weights)}
        self._weights = {name: _value(onnxruntime.OrtValue, weight) for name, weight in named.items()}
        try:
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._session = onnxruntime.InferenceSession(
                    bytes(program), options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:  # onnxruntime's exceptions have no common base class
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise PackageDamaged(
                f"onnxruntime {onnxruntime.__version__} refuses the model of {description}: {first_line}",
                hint="build the package again, or install a newer onnxruntime",
            ) from error
        self._value_class = onnxruntime.OrtValue
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        """Compute the outputs, on the CPU."""
        inputs = {name: _value(self._value_class, value) for name, value in zip(self._inputs, values, strict=True)}
        return [_tensor(result) for result in self._session.run_with_ort_values(self._outputs, inputs)]


def _value(value_class: Any, tensor: torch.Tensor) -> Any:
    """The tensor as an onnxruntime.OrtValue. `value_class` is this class."""
    import torch

    value = tensor.detach().contiguous()
    name = str(value.dtype).removeprefix("torch.")
    if name in _AS_BITS:
        element, bits = _AS_BITS[name]
        return value_class.ortvalue_from_numpy_with_onnx_type(value.view(getattr(torch, bits)).numpy(), element)
    return value_class.ortvalue_from_numpy(value.numpy())


def _tensor(value: Any) -> torch.Tensor:
    import torch

    return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()).clone()
