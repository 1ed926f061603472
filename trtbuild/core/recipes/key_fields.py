"""The fields of settings and models that are in a key, and the reasons why other fields are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

from trtbuild.core.model.builder_settings import SETTINGS_IN_EVERY_KEY, BuilderSettings
from trtbuild.core.model.spec import PartitionSettings, Target
from trtbuild.core.values.encoding import Shared, Value

#: (type, field) → the reason why `fields_of` leaves the field out. Only the package's key has labels, because they are a
#: part of the package's contents.
EXCLUDED: Mapping[tuple[str, str], str] = {
    ("Model", "name"): "a label: it names the steps, not their results",
    ("Model", "origin"): "the place of its declaration",
    ("Model", "places"): "the places where its fields are declared",
    ("Model", "outputs"): "the paths of results; the results are the same",
    ("Model", "targets"): "in another form: the key of each engine has its own target",
    ("Model", "dims"): "in another form: the symbols and shapes that follow from them are in the key",
    ("Model", "profiles"): "in another form: their shapes, in order, are in the keys of traces and engines",
    ("Model", "weights"): "in another form: a path; the content of the file is in the key",
    (
        "Model",
        "quantization",
    ): "in another form: it is in the key of the calibration, whose result is in the key of the trace",
    ("Model", "state"): "in another form: its patterns are in the key of the trace",
    (
        "Model",
        "plugins",
    ): "in another form: the operators are in the keys of the partitions, the library is in the keys of engines",
    ("Profile", "name"): "a label; its number and its shapes are in the key",
    ("Target", "name"): "a label; the other fields of the target are in the key",
    ("Target", "version"): "in another form: a pin; the toolchain's resolved version is in the key",
    ("Symbol", "name"): "a label; symbols are numbered",
    ("EngineJob", "inputs"): "in another form: they follow from the conversion, and the engine is compared with them",
    ("EngineJob", "outputs"): "in another form: they follow from the conversion, and the engine is compared with them",
}

#: (type, field) → the meaning of the field's default. When these fields were added, keys with the other fields of their
#: classes already existed. Such a field is in a key only if its value is not the default, so that older keys stay valid.
OMITTED_AT_DEFAULT: Mapping[tuple[str, str], str] = {
    ("Input", "range"): "with None, random values are chosen as before this field existed",
    ("PartitionSettings", "truncate_double"): "with False, float64 values stay in PyTorch",
}


def fields_of(value: Any) -> dict[str, Value]:
    """The fields of a dataclass and of nested dataclasses, as encodable values.

    Fields in `EXCLUDED` are left out. Fields that were added later are left out if they have their default."""
    type_name = type(value).__name__
    return {
        entry.name: _encodable(getattr(value, entry.name))
        for entry in dataclasses.fields(value)
        if (type_name, entry.name) not in EXCLUDED
        and not (_was_added_later(type_name, entry) and getattr(value, entry.name) == entry.default)
    }


def _was_added_later(type_name: str, entry: dataclasses.Field[Any]) -> bool:
    if "setting" in entry.metadata:
        return entry.name not in SETTINGS_IN_EVERY_KEY
    return (type_name, entry.name) in OMITTED_AT_DEFAULT


def settings_of(value: BuilderSettings | PartitionSettings | Target) -> Shared:
    """The result of `fields_of`. Equal settings share one result."""
    values = _GETTERS[type(value)](value)
    return _settings_of(value, tuple(map(type, values)))  # the types are compared, too, because 1 == True


#: Type → a function that returns the values of all fields. It does not use `vars`, which would add a dictionary to each
#: object, and so use more memory.
_GETTERS: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*(entry.name for entry in dataclasses.fields(kind)))
    for kind in (BuilderSettings, PartitionSettings, Target)
}


@lru_cache(maxsize=1024)
def _settings_of(value: Any, _: tuple[type, ...]) -> Shared:
    return Shared(fields_of(value))


def _encodable(value: Any) -> Value:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        # The keys stay as they are, because str(key) would make the keys 1 and "1" equal.
        return {key: _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value  # type: ignore[no-any-return]  # the encoder refuses unknown types
