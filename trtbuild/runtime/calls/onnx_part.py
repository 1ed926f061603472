"""The reference program of a model with an ONNX source: onnxruntime computes its only partition, on the CPU.

Rules
1. The ONNX model in the package does not contain its weights, ``w0…``. They are bound once, when the part is created.
2. onnxruntime reads the memory of the CPU tensors. bfloat16 is passed as int16 with the same bits, because NumPy does not
   have bfloat16.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.errors import PackageDamaged, ToolchainMissing

if TYPE_CHECKING:
    import torch

    from trtbuild.runtime.calls.call import Call

#: Element types that NumPy does not have: torch's name → the number in onnx.TensorProto.DataType, and an integer type of
#: the same size.
_BIT_TYPES = {"bfloat16": (16, "int16")}


def is_onnx(path: str) -> bool:
    """Whether the program at `path` in a package is an ONNX model, and not a PyTorch program."""
    return path.endswith(".onnx")


class OnnxPart:
    """A partition that onnxruntime computes on CPU tensors."""

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
        options.log_severity_level = 3  # errors only
        weights_by_name = {f"w{number}": weight for number, weight in enumerate(weights)}
        self._weights = {name: _ort_value(onnxruntime.OrtValue, weight) for name, weight in weights_by_name.items()}
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
        """Compute the outputs."""
        inputs = {name: _ort_value(self._value_class, value) for name, value in zip(self._inputs, values, strict=True)}
        return [_torch_tensor(result) for result in self._session.run_with_ort_values(self._outputs, inputs)]


def _ort_value(value_class: Any, tensor: torch.Tensor) -> Any:
    """Convert a tensor to an ``onnxruntime.OrtValue``, which is the `value_class`."""
    import torch

    value = tensor.detach().contiguous()
    name = str(value.dtype).removeprefix("torch.")
    if name in _BIT_TYPES:
        element_type, integer_type = _BIT_TYPES[name]
        bits = value.view(getattr(torch, integer_type)).numpy()
        return value_class.ortvalue_from_numpy_with_onnx_type(bits, element_type)
    return value_class.ortvalue_from_numpy(value.numpy())


def _torch_tensor(value: Any) -> torch.Tensor:
    import torch

    tensor = torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()).clone()
    # onnxruntime 1.31 passes bools as uint8
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor
