"""Run converted partitions with onnxruntime on the CPU.

Rules
1. Graph optimization is off. The model runs node by node, and values of float16 and bfloat16 are rounded after each node
   (`narrow`), except in a model with a value of unknown type. So every value inside can be compared with PyTorch's value.
2. Weights do not pass through protobuf. onnxruntime gets pointers to them, or to their converted copies (rules 1 and 4).
3. Sessions are cached while their weights have at most `_MAX_CACHED_BYTES` in total. The oldest session is deleted first.
   The newest always stays.
4. Weights of 4 bits become int8 (`four_bits`).
5. A partition is not checked (`NotRunnable`) if onnxruntime has no kernel or no element type for it, or if it calls
   plugins. If a partition fails for another reason (`PartFailed`), its conversion counts as wrong.
6. TopK gives its results sorted. ONNX leaves their order open for ``sorted=0``, and the reference sorts, too (`running`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime
import torch

from trtbuild.core.model.verification import Point, Runner
from trtbuild.core.partition.partitions import Partition
from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.verify.onnx_models.four_bits import convert_to_int8, external_types, unpacked
from trtbuild.stages.verify.onnx_models.narrow import UnknownElementType, convert_to_float32, has_narrow_types
from trtbuild.stages.verify.running import NotRunnable, PartFailed, Weights

_MAX_CACHED_BYTES = 1 << 30

#: ONNX's number of a type → torch's dtype, for the types that run in float32 (`narrow`).
_NARROW_DTYPE_OF_ONNX = {onnx.TensorProto.FLOAT16: torch.float16, onnx.TensorProto.BFLOAT16: torch.bfloat16}


class OnnxRuntime:
    """Runs the partitions of a model. `models` returns the ONNX model for a graph digest."""

    name: Runner = "onnxruntime"

    def __init__(self, models: Callable[[str], bytes], weights: Weights) -> None:
        self._models = models
        self._weights = weights
        self._sessions: dict[tuple[str, tuple[int, ...]], _Session] = {}

    def __call__(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> list[torch.Tensor]:
        """Return the results of `part`. Raises NotRunnable, PartFailed."""
        if part.plugins:
            raise NotRunnable(f"onnxruntime has no plugins ({', '.join(part.plugins)}); compare its engine on a GPU")
        return self._session(part).run(inputs, [f"o{k}" for k in range(len(part.outputs))])

    def values(self, part: Partition, inputs: Sequence[torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
        """Return the values inside `part` with these names in the ONNX model, in order.

        If the model runs in float32, inner values of float16 and bfloat16 are float32."""
        return _Session(self._models(part.graph), part, self._weights, names).run(inputs, names)

    def _session(self, part: Partition) -> _Session:
        key = (part.graph, part.weights)
        if key not in self._sessions:
            self._sessions[key] = _Session(self._models(part.graph), part, self._weights)
            while (
                len(self._sessions) > 1
                and sum(session.size_bytes for session in self._sessions.values()) > _MAX_CACHED_BYTES
            ):
                del self._sessions[next(iter(self._sessions))]
        return self._sessions[key]


class _Session:
    """A session of onnxruntime, and the weights that it points to.

    `inner_outputs` are the names of inner values that it returns in addition to the outputs."""

    def __init__(self, data: bytes, part: Partition, weights: Weights, inner_outputs: Sequence[str] = ()) -> None:
        model = onnx.ModelProto.FromString(data)
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
        self._narrow_outputs = {
            name: _NARROW_DTYPE_OF_ONNX[type_] for name, type_ in types.items() if type_ in _NARROW_DTYPE_OF_ONNX
        }
        # rewrite the model (rules 1, 4 and 6)
        _sort_results(model.graph)
        small_types = external_types(model)
        if small_types:
            model = convert_to_int8(model)
        self._runs_in_float32 = has_narrow_types(model)
        if self._runs_in_float32:
            try:
                model = convert_to_float32(model)
            except UnknownElementType:
                # onnxruntime runs float16 without these roundings, and rejects most models with bfloat16
                self._runs_in_float32 = False
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner_outputs if name not in types)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # pass pointers to the weights (rule 2)
        names, values, self._weight_arrays = [], [], []
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = self._array(weights[part.weights[int(tensor.name[1:])]])
                if tensor.name in small_types:
                    array = unpacked(array, small_types[tensor.name], tuple(tensor.dims))
                self._weight_arrays.append(array)
                names.append(tensor.name)
                try:
                    values.append(onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type))
                except Exception as error:  # onnxruntime's error types have no common base
                    raise PartFailed(
                        f"the weight {tensor.name} is {array.dtype}, which is not its type in the model"
                    ) from error
        options.add_external_initializers(names, values)
        self._values = values  # the session has pointers to their memory
        self.size_bytes = sum(array.nbytes for array in self._weight_arrays)
        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's error types have no common base
            text = _first_line(error)
            raise (NotRunnable if "NOT_IMPLEMENTED" in str(error) else PartFailed)(
                f"onnxruntime rejects the model: {text}"
            ) from error

    def run(self, inputs: Sequence[torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
        feeds = {entry.name: self._array(inputs[int(entry.name[1:])]) for entry in self._session.get_inputs()}
        try:
            results = self._session.run(list(names), feeds)
        except Exception as error:
            raise PartFailed(f"onnxruntime fails while it runs: {_first_line(error)}") from error
        tensors = [torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value))) for value in results]
        if not self._runs_in_float32:
            return tensors
        return [
            value.to(self._narrow_outputs.get(name, value.dtype)) for name, value in zip(names, tensors, strict=True)
        ]

    def _array(self, value: torch.Tensor) -> np.ndarray:
        """Return a tensor as a row-major array. If the model runs in float32, half types become float32."""
        tensor = value.detach().contiguous()
        if tensor.dtype is torch.bfloat16 and not self._runs_in_float32:
            raise NotRunnable("onnxruntime has no bfloat16")
        try:
            converted = tensor.float() if tensor.dtype in HALF_TYPES and self._runs_in_float32 else tensor
            array: np.ndarray = converted.numpy()
            return array
        except TypeError as error:
            raise NotRunnable(f"onnxruntime has no type for {str(tensor.dtype).removeprefix('torch.')}") from error


def _sort_results(graph: onnx.GraphProto) -> None:
    """Apply rule 6, in nested graphs, too."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "TopK" and attribute.name == "sorted":
                attribute.i = 1
            _sort_results(attribute.g)


def _first_line(error: Exception) -> str:
    """Return the first line of an onnxruntime error, without its prefix and source paths."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    text = re.sub(r"/\S+/(\w+\.\w+:\d+) \S+ ?", "", text)
    return (text.splitlines() or [type(error).__name__])[0][:300]
