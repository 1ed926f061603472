"""Define a recorded network (`trtbuild.core.partition.network_document`) again, with any toolchain.

Rules
1. No user code runs here. The document may call only methods ``add_…`` and ``set_…``, and may set attributes. Its
   enumeration values must be members of TensorRT's enumerations.
2. The names of inputs are ``i0…``, of outputs ``o0…``, and of layers ``n0…``, as in converted models.
3. With a toolchain that is not strongly typed (TensorRT before 9), only networks of float32, int32 and bool are built. Such
   a toolchain keeps these types as long as no precision flag is set.
4. If the toolchain lacks a recorded method or attribute, or refuses a call, the error names the method or attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trtbuild.core.partition import network_document
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.libraries.library import Log

Bytes = bytes | bytearray | memoryview

#: The types of rule 3: NumPy's and TensorRT's names.
_UNCHANGED_TYPES = frozenset(("float32", "int32", "bool", "FLOAT", "INT32", "BOOL"))
#: Prefixes of the methods that a document may call.
_ALLOWED_PREFIXES = ("add_", "set_")


class ReplayedNetwork:
    """A network that is defined from a document. After `close`, do not use `network`."""

    def __init__(self, network: Any, log: Log) -> None:
        """`network` must be empty."""
        self.network = network
        self._log = log
        self._weights: list[np.ndarray] = []

    def define(self, trt: Any, data: Bytes, weights: Mapping[str, Bytes], *, strongly_typed: bool) -> None:
        """Define the network of the document `data`. `weights`: name → bytes. The weight ``w3`` has the index 3 in the
        document's list of weights.

        Raises ToolchainError for a call or a type that the toolchain lacks or refuses, and for a weight of the wrong size.
        Raises KeyError for a missing weight.
        """
        document = network_document.parse(data)
        unsafe_type = None if strongly_typed else _first_unsafe_type(document)
        if unsafe_type is not None:
            raise ToolchainError(
                f"the network has values of type {unsafe_type}, but this toolchain does not keep declared types",
                hint="build it with TensorRT-RTX, or with TensorRT 10 or later",
            )
        self._weights = [
            _array(weights[f"w{slot}"], dtype, count) for slot, (dtype, count) in enumerate(document["weights"])
        ]
        inputs = []
        for number, (dtype, sizes) in enumerate(document["inputs"]):
            shape = [size if isinstance(size, int) else -1 for size in sizes]
            tensor = self.network.add_input(f"i{number}", _enum_member(trt, "DataType", dtype), shape)
            for axis, size in enumerate(sizes):
                if isinstance(size, str) and hasattr(tensor, "set_dimension_name"):  # since TensorRT 8.5
                    tensor.set_dimension_name(axis, size)
            inputs.append(tensor)
        objects: list[Any] = []
        values = _ValueReader(trt, inputs, objects, self._weights)
        layer_count = 0
        for entry in document["calls"]:
            lines_before = self._log.line_count()
            result = self._run_call(entry, values, objects)
            errors = self._log.errors(lines_before)
            if errors or (entry.get("makes") and result is None):
                reason = errors[0] if errors else "TensorRT returned nothing"
                raise ToolchainError(f"{_call_text(entry, layer_count)}: {reason}", log=self._log.texts())
            if entry.get("makes"):
                objects.append(result)
            if entry.get("makes") == "layer":
                result.name = f"n{layer_count}"
                layer_count += 1
        for number, document_value in enumerate(document["outputs"]):
            tensor = values.read(document_value)
            tensor.name = f"o{number}"
            self.network.mark_output(tensor)

    def _run_call(self, entry: Mapping[str, Any], values: _ValueReader, objects: Sequence[Any]) -> Any:
        target = self.network if entry.get("on") is None else objects[entry["on"]]
        if "tensor" in entry:
            target = values.read(entry["tensor"])
        name = entry.get("set") or entry["call"]
        if not hasattr(target, name) or ("call" in entry and not name.startswith(_ALLOWED_PREFIXES)):
            raise ToolchainError(f"this toolchain has no {name} of {type(target).__name__}")
        try:
            if "set" in entry:
                setattr(target, name, values.read(entry["value"]))
                return None
            kwargs = {key: values.read(value) for key, value in entry.get("kwargs", {}).items()}
            return getattr(target, name)(*map(values.read, entry["args"]), **kwargs)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ToolchainError(f"this toolchain refuses the recorded call of {name}: {first_line}") from error

    def close(self) -> None:
        """Free the network, then the weights."""
        del self.network
        self._weights.clear()

    def __enter__(self) -> ReplayedNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ValueReader:
    """Converts values of a document to TensorRT's values."""

    def __init__(self, trt: Any, inputs: Sequence[Any], objects: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        self._trt, self._inputs, self._objects, self._weights = trt, inputs, objects, weights

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(self.read, value))
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "float":
            return float.fromhex(inner)
        if kind == "enum":
            return _enum_member(self._trt, *inner)
        if kind == "permutation":
            return self._trt.Permutation(inner)
        if kind == "input":
            return self._inputs[inner]
        if kind == "output":
            return self._objects[inner[0]].get_output(inner[1])
        if kind == "object":
            return self._objects[inner]
        if kind == "weights":
            return self._weights[inner]
        if kind == "no_weights":
            return self._trt.Weights(_enum_member(self._trt, "DataType", inner))
        raise ValueError(f"{kind!r} is not a kind of value in a network document")


def weight_names(data: Bytes) -> list[str]:
    """Return the names of the weights of the document `data` in order: ``w0…``."""
    return [f"w{slot}" for slot in range(len(network_document.parse(data)["weights"]))]


def _first_unsafe_type(document: Mapping[str, Any]) -> str | None:
    types = [dtype for dtype, _ in (*document["weights"], *document["inputs"])] + list(_data_types(document["calls"]))
    return next((name for name in types if name not in _UNCHANGED_TYPES), None)


def _data_types(value: Any) -> Iterator[str]:
    """Yield the members of ``DataType`` in a value of the document."""
    if isinstance(value, dict):
        if "enum" in value and isinstance(value["enum"], list) and value["enum"][0] == "DataType":
            yield value["enum"][1]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _data_types(item)


def _enum_member(trt: Any, kind: str, name: str) -> Any:
    members = getattr(getattr(trt, kind, None), "__members__", {})
    if name not in members:
        raise ToolchainError(f"this toolchain has no {kind}.{name}")
    return members[name]


def _array(data: Bytes, dtype: str, count: int) -> np.ndarray:
    """Return weights as a flat array. It is a copy, because TensorRT identifies weights by their addresses."""
    array: np.ndarray = np.frombuffer(data, dtype=np.dtype(dtype)).copy()
    if array.size != count:
        raise ToolchainError(f"{count} weights of {dtype} were recorded, but {array.size} were found")
    return array


def _call_text(entry: Mapping[str, Any], layer_number: int) -> str:
    if "call" in entry:
        return f"layer n{layer_number} ({entry['call']})" if entry.get("makes") == "layer" else str(entry["call"])
    return f"the attribute {entry['set']!r}"
