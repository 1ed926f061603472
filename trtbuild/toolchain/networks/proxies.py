"""Proxies of TensorRT's objects. A function whose network is recorded calls these proxies instead of TensorRT.

Reads return TensorRT's own answers. A proxy passes changes of the network to the recorder
(`trtbuild.toolchain.networks.recording`). All other calls raise an error at the caller's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from trtbuild.core.partition.network_document import NotRecorded

_TENSOR_SETS = ("dtype", "allowed_formats")
_PLUGINS = ("add_plugin",)
_CALLS = ("mark_output", "unmark_output", "set_input", "set_condition", "set_output_type")
_READS = ("get_", "is_", "are_", "num_")
_LABELS = ("name", "metadata")


class Recorder(Protocol):
    """Records the changes of a network."""

    def call(self, on: Proxy, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...

    def set(self, on: Proxy, name: str, value: Any) -> None: ...

    def add_input(self, name: str, dtype: Any, shape: Any) -> Tensor: ...

    def mark_output(self, tensor: Any) -> None: ...

    def unmark_output(self, tensor: Any) -> None: ...

    def tensor(self, real: Any, written: dict[str, Any] | None = None) -> Any: ...

    def layer(self, index: int) -> Any: ...

    def plain(self, value: Any, name: str) -> Any: ...

    def raising_errors(self, action: str) -> AbstractContextManager[None]: ...


class Proxy:
    """The proxy of a TensorRT object. `real` is the object. `number` is its number in the document, or None for the
    network."""

    def __init__(self, recorder: Recorder, real: Any, number: int | None) -> None:
        object.__setattr__(self, "_recorder", recorder)
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "number", number)

    _recorder: Recorder
    real: Any
    number: int | None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_PLUGINS):
            raise NotRecorded(f"{name}: plugins cannot be recorded; use TensorRT's own layers")
        with self._recorder.raising_errors(name):
            attribute = getattr(self.real, name)  # AttributeError is TensorRT's own
        if not callable(attribute):
            return self._recorder.plain(attribute, name)
        if name.startswith(_READS):
            return lambda *args: self._recorder.plain(attribute(*args), name)
        if not (name.startswith("add_") or name in _CALLS):
            raise NotRecorded(f"{name} cannot be recorded")
        return lambda *args, **kwargs: self._recorder.call(self, name, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self.real, name)  # AttributeError is TensorRT's own
        if name in _LABELS:
            setattr(self.real, name, value)
        else:
            self._recorder.set(self, name, value)


class Network(Proxy):
    """The proxy of an ``INetworkDefinition``."""

    def add_input(self, name: str, dtype: Any, shape: Any) -> Tensor:
        return self._recorder.add_input(name, dtype, shape)

    def mark_output(self, tensor: Any) -> None:
        self._recorder.mark_output(tensor)

    def unmark_output(self, tensor: Any) -> None:
        self._recorder.unmark_output(tensor)

    def get_input(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_input(index))

    def get_output(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_output(index))

    def get_layer(self, index: int) -> Any:
        return self._recorder.layer(index)

    def __len__(self) -> int:
        return int(self.real.num_layers)

    def __getitem__(self, index: int) -> Any:
        return self._recorder.layer(index)


class Made(Proxy):
    """The proxy of the result of a call: an ``ILayer``, an ``ILoop``, an ``IIfConditional``."""

    def get_output(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_output(index), {"output": [self.number, index]})

    def get_input(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_input(index))


class Tensor(Proxy):
    """The proxy of an ``ITensor``. `written` is its value in the document. `label` is the name that the function has set,
    or None."""

    written: dict[str, Any]
    label: str | None

    def __init__(self, recorder: Recorder, real: Any, written: dict[str, Any]) -> None:
        super().__init__(recorder, real, None)
        object.__setattr__(self, "written", written)
        object.__setattr__(self, "label", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name":
            if "input" in self.written and value != self.real.name:
                raise NotRecorded(f"input {self.real.name!r} cannot be renamed: its name comes from the manifest")
            self.real.name = value
            object.__setattr__(self, "label", str(value))
        elif name in _TENSOR_SETS and hasattr(self.real, name):
            self._recorder.set(self, name, value)
        else:
            raise NotRecorded(f"the attribute {name!r} of a tensor cannot be recorded")

    def __getattr__(self, name: str) -> Any:
        with self._recorder.raising_errors(name):
            attribute = getattr(self.real, name)
        if callable(attribute) and not name.startswith(_READS):
            raise NotRecorded(f"{name} of a tensor cannot be recorded")
        return attribute if callable(attribute) else self._recorder.plain(attribute, name)
