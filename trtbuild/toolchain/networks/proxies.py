"""Proxies of TensorRT's objects, which a user's function calls when it defines a network.

A read returns TensorRT's own answer, or a proxy of it. A change of the network goes to the recorder
(`trtbuild.toolchain.networks.recording`). Names and metadata are only set in the network. All other calls raise an error at
the caller's line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from trtbuild.core.partition.network_document import NotRecorded

#: The attributes of a tensor that are recorded when they are set.
_TENSOR_ATTRIBUTES = ("dtype", "allowed_formats")
#: The prefix of the only methods ``add_…`` that cannot be recorded.
_PLUGIN_PREFIXES = ("add_plugin",)
#: The recorded methods whose names do not begin with ``add_``. They belong to layers and conditionals.
_RECORDED_CALLS = ("set_input", "set_condition", "set_output_type")
#: The prefixes of methods that only read.
_READ_PREFIXES = ("get_", "is_", "are_", "num_")
#: Attributes that are set in the network, but are not recorded (rule 4 of `recording`).
_LABEL_ATTRIBUTES = ("name", "metadata")


class Recorder(Protocol):
    """Records the changes of a network (implemented in `trtbuild.toolchain.networks.recording`). All methods may raise
    `NotRecorded`."""

    def call(self, target: Proxy, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that changes the network, and record the call."""

    def set(self, target: Proxy, name: str, value: Any) -> None:
        """Set an attribute, and record the value."""

    def add_input(self, name: str, dtype: Any, shape: Any) -> TensorProxy:
        """Add an input to the network."""
        ...

    def mark_output(self, tensor: Any) -> None:
        """Make a tensor an output of the network."""

    def unmark_output(self, tensor: Any) -> None:
        """Undo `mark_output`."""

    def tensor(self, real: Any, document_value: dict[str, Any] | None = None) -> Any:
        """Return the proxy of the tensor `real`, or None if `real` is None. `TensorProxy` explains `document_value`."""

    def layer(self, index: int) -> Any:
        """Return the proxy of the layer with this index in the network."""

    def readable_value(self, value: Any, name: str) -> Any:
        """Return `value`, which a read of `name` has returned. Objects that could change the network are refused."""

    def raise_logged_errors(self, action: str) -> AbstractContextManager[None]:
        """Raise the errors that TensorRT logs inside the block. `action` begins the message."""
        ...


class Proxy:
    """The proxy of the TensorRT object `real`. `number` is the object's number in the network document
    (`trtbuild.core.partition.network_document`), or None for the network and for tensors."""

    def __init__(self, recorder: Recorder, real: Any, number: int | None) -> None:
        object.__setattr__(self, "_recorder", recorder)
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "number", number)

    _recorder: Recorder
    real: Any
    number: int | None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_PLUGIN_PREFIXES):
            raise NotRecorded(f"{name}: plugins cannot be recorded; use TensorRT's own layers")
        with self._recorder.raise_logged_errors(name):
            attribute = getattr(self.real, name)  # raises TensorRT's AttributeError for an unknown name
        if not callable(attribute):
            return self._recorder.readable_value(attribute, name)
        if name.startswith(_READ_PREFIXES):
            return _checked_read(self._recorder, attribute, name)
        if not (name.startswith("add_") or name in _RECORDED_CALLS):
            raise NotRecorded(f"{name} cannot be recorded")
        return lambda *args, **kwargs: self._recorder.call(self, name, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self.real, name)  # raises TensorRT's AttributeError for an unknown name
        if name in _LABEL_ATTRIBUTES:
            setattr(self.real, name, value)
        else:
            self._recorder.set(self, name, value)


class NetworkProxy(Proxy):
    """The proxy of an ``INetworkDefinition``."""

    def add_input(self, name: str, dtype: Any, shape: Any) -> TensorProxy:
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
        # as in TensorRT's network, so that loops over the layers end, and -1 is the last layer
        if not -len(self) <= index < len(self):
            raise IndexError("Out of bounds")
        return self._recorder.layer(index % len(self))


class ResultProxy(Proxy):
    """The proxy of the result of a call: an ``ILayer``, an ``ILoop``, an ``IIfConditional``."""

    def get_output(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_output(index), {"output": [self.number, index]})

    def get_input(self, index: int) -> Any:
        return self._recorder.tensor(self.real.get_input(index))


class TensorProxy(Proxy):
    """The proxy of an ``ITensor``. `document_value` identifies the tensor in the network document: ``{"input": k}`` or
    ``{"output": [object, k]}``. `label` is the name that the user's function has set, or None."""

    document_value: dict[str, Any]
    label: str | None

    def __init__(self, recorder: Recorder, real: Any, document_value: dict[str, Any]) -> None:
        super().__init__(recorder, real, None)
        object.__setattr__(self, "document_value", document_value)
        object.__setattr__(self, "label", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name":
            if "input" in self.document_value and value != self.real.name:
                raise NotRecorded(f"input {self.real.name!r} cannot be renamed: its name comes from the manifest")
            self.real.name = value
            object.__setattr__(self, "label", str(value))
        elif name in _TENSOR_ATTRIBUTES and hasattr(self.real, name):
            self._recorder.set(self, name, value)
        else:
            raise NotRecorded(f"the attribute {name!r} of a tensor cannot be recorded")

    def __getattr__(self, name: str) -> Any:
        with self._recorder.raise_logged_errors(name):
            attribute = getattr(self.real, name)
        if callable(attribute) and not name.startswith(_READ_PREFIXES):
            raise NotRecorded(f"{name} of a tensor cannot be recorded")
        if callable(attribute):
            return _checked_read(self._recorder, attribute, name)
        return self._recorder.readable_value(attribute, name)


def _checked_read(recorder: Recorder, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that calls `method`, and raises the errors that TensorRT logs in the call."""

    def read(*args: Any, **kwargs: Any) -> Any:
        with recorder.raise_logged_errors(name):
            value = method(*args, **kwargs)
        return recorder.readable_value(value, name)

    return read
