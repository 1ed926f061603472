"""Record the calls with which a function defines a TensorRT network (`trtbuild.core.partition.network_document`).

Rules
1. The function gets TensorRT's real module, and a proxy of a real network (`trtbuild.toolchain.networks.proxies`). So it
   reads TensorRT's own shapes, types and numbers of layers.
2. Changes of the network are recorded: ``add_…``, ``mark_output``, ``unmark_output``, ``set_input``, ``set_condition``,
   ``set_output_type``, assignments to attributes (except those of rule 4). Reads are not recorded. All other calls
   (plugins, debug tensors, refit marks) raise `NotRecorded` at the caller's line.
3. If TensorRT refuses a call or a read, it logs an error and continues. Here, such an error raises `NotRecorded`. For an
   index without a tensor, ``get_input`` and ``get_output`` return None.
4. Names and metadata that the function sets are in the network, but not in the document, because they are only labels.
5. TensorRT-RTX records the networks for all toolchains, because only TensorRT-RTX can define networks without a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.partition import network_document
from trtbuild.core.partition.network_document import NotRecorded
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.toolchain.libraries.library import Log, capture_log, load
from trtbuild.toolchain.networks.proxies import NetworkProxy, Proxy, ResultProxy, TensorProxy

#: The toolchain that records (rule 5). A trace that records a network depends on this toolchain's distribution.
RECORDING_TOOLCHAIN: ToolchainName = "tensorrt-rtx"

#: torch's names → names of tensorrt.DataType, for inputs, outputs and weights.
TENSORRT_TYPES = {
    name: ELEMENT_TYPES[name].tensorrt
    for name in ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
}
_TORCH_TYPES = {name: dtype for dtype, name in TENSORRT_TYPES.items()}


@dataclass(frozen=True)
class NetworkInput:
    """An input that the manifest declares. A size is a number, or ``d<k>`` if it is dynamic."""

    name: str
    dtype: str
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class RecordedNetwork:
    """A recorded network: its document, its weights in the document's order, the (name, type) of each layer, and the
    (name, dtype, sizes) of each output. A size of -1 is dynamic."""

    document: bytes
    weights: list[np.ndarray]
    layers: list[tuple[str, str]]
    outputs: list[tuple[str, str, tuple[int, ...]]]


#: Gets the name, dtype and sizes (-1 is dynamic) of an input that the function adds. Raises if they differ from the
#: manifest.
CheckInput = Callable[[str, str, Sequence[int]], None]


def record_network(
    define: Callable[[Any, Any], object], inputs: Sequence[NetworkInput], check: CheckInput
) -> RecordedNetwork:
    """Call ``define(network, trt)``, and record the network. Raises ToolchainMissing, NotRecorded, and errors of
    `define`."""
    trt = load(RECORDING_TOOLCHAIN)
    with capture_log(trt) as (logger, log):
        builder = trt.Builder(logger)
        real = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        recorder = _Recorder(trt, real, inputs, check, log)
        try:
            define(recorder.network, trt)
            return recorder.finish()
        finally:
            recorder.close()
            del real, builder


class _Recorder:
    """Implements `trtbuild.toolchain.networks.proxies.Recorder` for the network `real`."""

    def __init__(self, trt: Any, real: Any, inputs: Sequence[NetworkInput], check: CheckInput, log: Log) -> None:
        self.trt, self.real, self.log = trt, real, log
        self._declared = {entry.name: (number, entry) for number, entry in enumerate(inputs)}
        self._check = check
        self._calls: list[dict[str, Any]] = []
        self._weights: list[np.ndarray] = []
        #: The proxies of layers and scopes (loops, conditionals), by their numbers in the document.
        self._objects: list[Any] = []
        #: id of a real tensor → its proxy. The proxy refers to the tensor, so no other object can get the same id.
        self._tensors: dict[int, TensorProxy] = {}
        #: Number of an input in the manifest → its proxy.
        self._inputs: dict[int, TensorProxy] = {}
        #: The tensors that are marked as outputs, in the order of the calls.
        self.outputs: list[TensorProxy] = []
        #: Index of a layer in the network → index of its proxy in `_objects`.
        self.layer_numbers: dict[int, int] = {}
        self.network = NetworkProxy(self, real, None)

    # -- recorded calls

    def call(self, target: Proxy, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        positional = [self._converted_value(value) for value in args]
        named = {k: self._converted_value(v) for k, v in sorted(kwargs.items())}
        entry: dict[str, Any] = {
            "on": target.number,
            "call": name,
            "args": [document_value for document_value, _ in positional],
        }
        if named:
            entry["kwargs"] = {key: document_value for key, (document_value, _) in named.items()}
        layers_before = self.real.num_layers
        with self.raise_logged_errors(name):
            result = getattr(target.real, name)(
                *(value for _, value in positional), **{k: value for k, (_, value) in named.items()}
            )
        if result is None and name.startswith("add_"):
            raise NotRecorded(f"TensorRT returned nothing for {name}")
        # A refused call is not recorded, because the function may catch the error and continue.
        self._calls.append(entry)
        if result is None:
            return None
        if isinstance(result, self.trt.ILayer):
            entry["makes"] = "layer"
            if self.real.num_layers == layers_before + 1:
                self.layer_numbers[layers_before] = len(self._objects)
        elif type(result).__module__ == type(self.real).__module__ and not isinstance(result, self.trt.ITensor):
            entry["makes"] = "scope"
        else:
            return result
        proxy = ResultProxy(self, result, len(self._objects))
        self._objects.append(proxy)
        return proxy

    def set(self, target: Proxy, name: str, value: Any) -> None:
        if name == "allowed_formats" and value != 1 << int(self.trt.TensorFormat.LINEAR):
            raise NotRecorded(
                "inputs and outputs are row-major (LINEAR), as arrays are: other formats cannot be recorded"
            )
        owner = {"on": target.number} if not isinstance(target, TensorProxy) else {"tensor": target.document_value}
        document_value, real = self._converted_value(value)
        with self.raise_logged_errors(name):
            setattr(target.real, name, real)
        self._calls.append({**owner, "set": name, "value": document_value})

    def add_input(self, name: str, dtype: Any, shape: Any) -> TensorProxy:
        """Add an input to the network. In the document, inputs have the manifest's order, not the order of the calls."""
        sizes = [int(size) for size in shape]
        self._check(name, _TORCH_TYPES.get(dtype.name, dtype.name.lower()), sizes)
        number, declared = self._declared[name]
        if number in self._inputs:
            raise NotRecorded(f"input {name!r} is added twice")
        with self.raise_logged_errors("add_input"):
            real = self.real.add_input(name, dtype, [size if isinstance(size, int) else -1 for size in declared.sizes])
        if real is None:
            raise NotRecorded(f"TensorRT refuses input {name!r}")
        for axis, size in enumerate(declared.sizes):
            if isinstance(size, str):
                real.set_dimension_name(axis, size)
        proxy = TensorProxy(self, real, {"input": number})
        self._tensors[id(real)] = self._inputs[number] = proxy
        return proxy

    def tensor(self, real: Any, document_value: dict[str, Any] | None = None) -> Any:
        if real is None:
            return None
        known = self._tensors.get(id(real))
        if known is None:
            if document_value is None:
                raise NotRecorded("this tensor was not made by a recorded call: take it from its layer's get_output")
            known = self._tensors[id(real)] = TensorProxy(self, real, document_value)
        return known

    def layer(self, index: int) -> Any:
        if index not in self.layer_numbers:
            raise NotRecorded(f"layer {index} was not made by a recorded call: keep what add_… returns")
        return self._objects[self.layer_numbers[index]]

    def mark_output(self, tensor: Any) -> None:
        if not isinstance(tensor, TensorProxy):
            raise NotRecorded("mark_output takes a tensor of this network")
        if "input" in tensor.document_value:
            raise NotRecorded("an input cannot be an output: put network.add_identity between them")
        if tensor in self.outputs:
            raise NotRecorded(f"{tensor.real.name!r} is marked as an output twice")
        with self.raise_logged_errors("mark_output"):
            self.real.mark_output(tensor.real)
        self.outputs.append(tensor)

    def unmark_output(self, tensor: Any) -> None:
        if tensor not in self.outputs:
            raise NotRecorded("only an output can be unmarked")
        with self.raise_logged_errors("unmark_output"):
            self.real.unmark_output(tensor.real)
        self.outputs.remove(tensor)

    # -- the result

    def finish(self) -> RecordedNetwork:
        """Return the recorded network. Raises NotRecorded if an input is missing, if there is no output, or if an output
        has an unknown shape or a type that no array has."""
        for name, (number, _) in self._declared.items():
            if number not in self._inputs:
                raise NotRecorded(f"input {name!r} of the manifest is not added: network.add_input({name!r}, …)")
        if not self.outputs:
            raise NotRecorded("no output is marked: network.mark_output(tensor)")
        inputs = [[TENSORRT_TYPES[entry.dtype], list(entry.sizes)] for _, entry in self._declared.values()]
        weights = [[str(array.dtype), array.size] for array in self._weights]
        outputs = []
        for number, tensor in enumerate(self.outputs):
            with self.raise_logged_errors(f"the shape of output {number}"):
                shape = tuple(int(size) for size in tensor.real.shape)
            dtype = _TORCH_TYPES.get(tensor.real.dtype.name)
            if dtype is None:
                raise NotRecorded(f"output {tensor.real.name!r} has type {tensor.real.dtype.name}, which no array has")
            name = tensor.label or f"output_{number}"
            outputs.append((name, dtype, shape))
        layers = [proxy for proxy in self._objects if isinstance(proxy.real, self.trt.ILayer)]
        return RecordedNetwork(
            network_document.to_bytes(inputs, weights, self._calls, [tensor.document_value for tensor in self.outputs]),
            self._weights,
            [(proxy.real.name, proxy.real.type.name.lower()) for proxy in layers],
            outputs,
        )

    def close(self) -> None:
        """Release TensorRT's objects before their network is freed."""
        self._tensors.clear()
        self._inputs.clear()
        self._objects.clear()
        self.outputs.clear()
        del self.real, self.network

    # -- values

    def _converted_value(self, value: Any) -> tuple[Any, Any]:
        """Return an argument as a value of the document (rule 3 of `network_document`), and as a value for TensorRT. Raises
        NotRecorded."""
        trt = self.trt
        if value is None or isinstance(value, bool | int | str):
            return value, value
        if isinstance(value, np.generic):
            return self._converted_value(value.item())
        if isinstance(value, float):
            return {"float": value.hex()}, value
        if isinstance(value, TensorProxy):
            return value.document_value, value.real
        if isinstance(value, ResultProxy):
            return {"object": value.number}, value.real
        if isinstance(value, np.ndarray) or (isinstance(value, trt.Weights) and value.size):
            return self._store_weights(value if isinstance(value, np.ndarray) else _array(value))
        if isinstance(value, trt.Weights):
            return {"no_weights": value.dtype.name}, value
        if hasattr(type(value), "__members__") and type(value).__module__ == type(self.real).__module__:
            return {"enum": [type(value).__name__, value.name]}, value
        if isinstance(value, trt.Permutation):
            return {"permutation": list(value)}, value
        if isinstance(value, list | tuple | trt.Dims):
            items = [self._converted_value(item) for item in value]
            return [document_value for document_value, _ in items], tuple(real for _, real in items)
        raise NotRecorded(f"a value of type {type(value).__name__} cannot be recorded")

    def _store_weights(self, value: np.ndarray) -> tuple[Any, Any]:
        """Store weights. Returns their value in the document, and a copy of them. TensorRT keeps a pointer to the copy."""
        if str(value.dtype) not in TENSORRT_TYPES:
            raise NotRecorded(
                f"weights of type {value.dtype} cannot be recorded; they may be {', '.join(TENSORRT_TYPES)}"
            )
        self._weights.append(np.array(value, order="C", copy=True))
        return {"weights": len(self._weights) - 1}, self._weights[-1]

    def readable_value(self, value: Any, name: str) -> Any:
        value_types = (self.trt.Dims, self.trt.Permutation, self.trt.Weights)
        is_trt_object = type(value).__module__ == type(self.real).__module__ and not hasattr(type(value), "__members__")
        if is_trt_object and not isinstance(value, value_types):
            raise NotRecorded(f"{name} returns a {type(value).__name__}, whose calls cannot be recorded")
        return value

    @contextlib.contextmanager
    def raise_logged_errors(self, action: str) -> Iterator[None]:
        """Raise NotRecorded if TensorRT logs an error or raises a RuntimeError inside the block (rule 3)."""
        lines_before = self.log.line_count()
        try:
            yield
        except RuntimeError as error:  # for example a shape, which TensorRT computes when it is read
            reasons = self.log.errors(lines_before) or [str(error)]
            raise NotRecorded(f"{action}: TensorRT says: {reasons[0]}") from error
        errors = self.log.errors(lines_before)
        if errors:
            raise NotRecorded(f"{action}: TensorRT says: {errors[0]}")


def _array(weights: Any) -> np.ndarray:
    try:
        array: np.ndarray = weights.numpy()
    except Exception as error:
        raise NotRecorded(f"weights of type {weights.dtype.name} cannot be recorded: {error}") from error
    return array
