"""The containers of a module's result: tuples, lists, dicts and classes of the user, with the keys of their items.

Rules
1. torch describes a result by a `TreeSpec`. For each class it has a *context*: the keys of a dict, for example.
2. A class may compute with its fields when an instance is created. So no instance is created if the context has the keys.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch.utils._pytree as pytree

DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_LEAF = object()


def class_name_of(spec: pytree.TreeSpec) -> str:
    """The class of a container: ``module:qualname``."""
    kind = spec.type if isinstance(spec.type, type) else spec.context  # for a named tuple, the context is its class
    return f"{kind.__module__}:{kind.__qualname__}"


def leaf_paths(spec: pytree.TreeSpec) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each leaf."""
    if spec.is_leaf():
        yield ()
        return
    for key, child in zip(keys_of(spec), spec.children(), strict=True):
        yield from ((key, *path) for path in leaf_paths(child))


def keys_of(spec: pytree.TreeSpec) -> list[Any]:
    """The keys, field names or indices of a container's children."""
    kind, context = spec.type, spec.context
    if not isinstance(kind, type):
        return list(context._fields)
    if kind in DICTS:  # the context of a defaultdict is [factory, keys]
        return list(context[1] if kind is collections.defaultdict else context)
    if dataclasses.is_dataclass(kind):
        fields = {field.name for field in dataclasses.fields(kind)}
        # torch's context is [names, names of None], and that of transformers is the names
        nested = context[0] if isinstance(context, list | tuple) and context else None
        for names in (context, nested):
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                continue
            if len(names) == spec.num_children and fields.issuperset(names):
                return list(names)
    return _declared_keys(spec) or list(range(spec.num_children))


def none_fields_of(spec: pytree.TreeSpec) -> list[str]:
    """The fields of a dataclass that are None: torch has them in the context, not among the children."""
    if not dataclasses.is_dataclass(spec.type):
        return []
    match spec.context:
        case [list(), list(names)]:
            return [name for name in names if isinstance(name, str)]
    return []


def first_difference(spec: pytree.TreeSpec, other: pytree.TreeSpec) -> tuple[str, str] | None:
    """The first containers with other classes or keys, as texts; None if `spec` and `other` have the same structure."""
    texts = _text(spec), _text(other)
    if texts[0] != texts[1]:
        return texts
    pairs = zip(spec.children(), other.children(), strict=True)
    return next((found for pair in pairs if (found := first_difference(*pair)) is not None), None)


def _declared_keys(spec: pytree.TreeSpec) -> list[Any] | None:
    """The keys that a class has registered for the paths of its items. None without such keys, or if an error occurs."""
    try:
        dummy = pytree.tree_unflatten([_LEAF] * spec.num_leaves, spec)
        children = pytree.tree_leaves_with_path(dummy, is_leaf=lambda value: value is not dummy)
    except Exception:  # the class checks its fields, for example
        return None
    keys = [_key(path[0]) for path, _ in children if path]
    return keys if len(keys) == spec.num_children else None


def _key(entry: Any) -> Any:
    """The key, the field name or the index in an entry of a pytree path."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            key = getattr(entry, attribute)
            return key if isinstance(key, str | int) else str(key)
    return str(entry)


def _text(spec: pytree.TreeSpec) -> str:
    """A container with its keys: ``dict('boxes', 'scores')``."""
    if spec.is_leaf():
        return "a single value"
    name = class_name_of(spec).partition(":")[2]
    absent = f" without {', '.join(map(repr, none_fields_of(spec)))}" if none_fields_of(spec) else ""
    return f"{name}({', '.join(map(repr, keys_of(spec)))}){absent}"
