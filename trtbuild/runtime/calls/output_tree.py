"""Put a package's flat outputs into the structure that the original module returns.

Rules
1. Lists, tuples, dicts, constants and None are restored.
2. Named tuples and dataclasses (such as transformers' ``ModelOutput``) become instances of their class, if the Python
   module of the class is loaded in this process. Nothing is imported, because a package must not load user code. If the
   module is not loaded, or the class does not accept the fields, a `Fields` object replaces the instance.
3. A number (a size, for example) is restored as a Python number. On a GPU, this waits for the work of the call.
4. A package could name any class, such as ``subprocess:Popen``. So only named tuples and dataclasses are called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from operator import itemgetter
from typing import Any

from trtbuild.core.values.encoding import from_json

#: Flat outputs → the module's return value.
Restore = Callable[[Sequence[Any]], Any]


class Fields:
    """Replaces an instance whose class cannot be used (rule 2). It supports ``out.logits``, ``out["logits"]``,
    ``out[0]``, and unpacking."""

    def __init__(self, name: str, names: Sequence[str], values: Sequence[Any]) -> None:
        self.__dict__.update(zip(names, values, strict=True))
        self._name, self._names, self._values = name, tuple(names), tuple(values)

    def keys(self) -> tuple[str, ...]:
        return self._names

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            try:
                return self._values[self._names.index(key)]
            except ValueError:
                raise KeyError(key) from None
        return self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._names, self._values, strict=True))
        return f"{self._name}({fields})"


def restorer(tree: Any) -> Restore:
    """Return a function that puts flat outputs into the structure `tree`, which is from a package's index."""
    kind = tree["kind"]
    if kind == "tensor":
        index = tree["index"]
        return lambda outputs: outputs[index]
    if kind == "number":
        index = tree["index"]
        return lambda outputs: _python_number(outputs[index])
    if kind == "none":
        return lambda outputs: None
    if kind == "constant":
        value = from_json(tree["value"])
        return lambda outputs: value
    items = _items_restorer(tree["items"])
    if kind == "list":
        return lambda outputs: list(items(outputs))
    if kind == "tuple":
        return lambda outputs: tuple(items(outputs))
    keys = tree["keys"]
    if kind == "dict":
        return lambda outputs: dict(zip(keys, items(outputs), strict=True))
    return _class_restorer(tree["type"], [str(key) for key in keys], items)


def _python_number(scalar: Any) -> Any:
    """Return the Python number in a 0-d torch tensor or a 0-d `DeviceArray`."""
    return scalar.item() if hasattr(scalar, "item") else scalar.numpy().item()


def _items_restorer(trees: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(trees) > 1 and all(tree["kind"] == "tensor" for tree in trees):
        # Most models return only tensors. `itemgetter` takes a fifth of the time of the general case.
        return itemgetter(*[tree["index"] for tree in trees])
    items = [restorer(tree) for tree in trees]
    return lambda outputs: [item(outputs) for item in items]


def _class_restorer(name: str, keys: Sequence[str], items: Callable[[Sequence[Any]], Sequence[Any]]) -> Restore:
    short = name.rpartition(":")[2]

    def restore(outputs: Sequence[Any]) -> Any:
        values = items(outputs)
        kind = _loaded_class(name)
        if kind is not None:
            try:
                return _instance(kind, dict(zip(keys, values, strict=True)))
            except Exception:  # another class has this name, or the class has another constructor or check
                pass
        return Fields(short, keys, values)

    return restore


def _instance(kind: type, fields: Mapping[str, Any]) -> Any:
    """Create an instance of a named tuple or dataclass with these fields."""
    instance = kind(**fields)
    if not isinstance(instance, dict):  # a ModelOutput is also a dict, and sets its items
        for name, value in fields.items():
            # `__post_init__` may change a field. It already did so for the model's result, so that value is restored.
            if getattr(instance, name) is not value:
                object.__setattr__(instance, name, value)
    return instance


def _loaded_class(name: str) -> Any:
    """Return the named tuple or dataclass ``module:qualname``, or None if no such class is loaded.

    ``getattr`` is not used, because the ``__getattr__`` of a module may import other modules (rule 2)."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for attribute in path.split("."):
        try:
            value = object.__getattribute__(value, "__dict__").get(attribute)
        except AttributeError:  # a value such as None has no `__dict__`
            return None
    return value if isinstance(value, type) and _has_fields(value) else None


def _has_fields(kind: type) -> bool:
    """Whether a class is a named tuple or a dataclass (rule 4)."""
    return is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
