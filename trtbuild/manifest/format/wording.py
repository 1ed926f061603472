"""Check values with pydantic, and write messages for its errors.

An error of pydantic has a `loc`, which is a path such as ``("inputs", "image", "dtype")``. This path leads through the YAML
nodes to the line and column, and through the pydantic models to the allowed values.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le
from pydantic import BaseModel, TypeAdapter, ValidationError

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest, suggestion
from trtbuild.manifest.format.input_fields import InputFields
from trtbuild.manifest.format.kinds import SYNONYMS, Allowed
from trtbuild.manifest.format.source_fields import SourceFields
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, kind_of

#: Text in lower case → the boolean that is probably meant.
_BOOLEAN_WORDS = {
    "yes": "true", "on": "true", "y": "true", "1": "true", "true": "true",
    "no": "false", "off": "false", "n": "false", "0": "false", "false": "false",
}  # fmt: skip

_WORD = re.compile(r"[A-Za-z_]\w*")
#: Field → the hint if its value is one word, and therefore only a part of a valid value.
_COMPLETIONS = {"torch_executed_ops": "write aten.{}", "at": "write {}.0 for its first axis"}


class ExpectedType(NamedTuple):
    """The expected type of a value, with pydantic's metadata about the type."""

    annotation: Any
    metadata: tuple[Any, ...] = ()

    @property
    def bare_type(self) -> Any:
        """The type without None and without its metadata."""
        return self.unwrap().annotation

    def unwrap(self) -> ExpectedType:
        """The type without `Annotated` and ``| None``, with all metadata."""
        annotation, metadata = self
        while True:
            if typing.get_origin(annotation) is Annotated:
                annotation, *more = typing.get_args(annotation)
                metadata = (*metadata, *more)
            elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
                kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
                if len(kinds) != 1:
                    return ExpectedType(annotation, metadata)
                annotation = kinds[0]
            else:
                return ExpectedType(annotation, tuple(_constraints(metadata)))

    def type_inside(self, step: str | int) -> ExpectedType | None:
        """The expected type of a field, entry or element of a value of this type. None if it is unknown."""
        kind = self.bare_type
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            info = kind.model_fields.get(str(step))
            return None if info is None else ExpectedType(info.annotation, tuple(info.metadata))
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) is dict:
            return ExpectedType(arguments[1])
        if typing.get_origin(kind) is list and isinstance(step, int):
            return ExpectedType(arguments[0])
        return None


def _constraints(metadata: Sequence[Any]) -> list[Any]:
    """The single constraints in metadata. In `Annotated[int, Field(ge=1)]`, `Ge(1)` is inside a `FieldInfo`."""
    constraints: list[Any] = []
    for entry in metadata:
        constraints += list(getattr(entry, "metadata", ())) or [entry]
    return constraints


def allowed_text(expected: ExpectedType) -> str:
    """The allowed values, as a text that can follow the words "must be"."""
    kind, metadata = expected.unwrap()
    for entry in metadata:
        if isinstance(entry, Allowed):
            return entry.text
    if typing.get_origin(kind) is Literal:
        choices = [str(choice) for choice in typing.get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if kind is bool:
        return "true or false"
    if kind is int:
        minimum = next((entry.ge for entry in metadata if isinstance(entry, Ge)), None)
        maximum = next((entry.le for entry in metadata if isinstance(entry, Le)), None)
        if isinstance(maximum, int) and maximum < 2**31 - 1:  # the largest int32 would not help the user
            return f"a whole number from {minimum} to {maximum}"
        return "a whole number" if minimum is None else f"a whole number ≥ {minimum}"
    if kind is str:
        return "text"
    if typing.get_origin(kind) is list:
        return "a list"
    return "a mapping"


def check(kind: Any, label: str, node: Node, key: Origin, problems: Problems) -> Any | None:
    """The value of `node` as `kind`, which is a type or a pydantic model.

    `label` is the node's name, and `key` is the place of this name. If the value is invalid, adds its problems. The result
    is then None, or the pydantic model without its invalid fields.
    """
    value, _ = check_fields(kind, label, node, key, problems)
    return value


def check_fields(
    kind: Any, label: str, node: Node, key: Origin, problems: Problems
) -> tuple[Any | None, frozenset[str]]:
    """Like `check`, but also return the names of the invalid fields."""
    adapter = _adapter(kind)
    try:
        return adapter.validate_python(node.data), frozenset()
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=True)
    misspelt = _misspelt_places(kind, errors)
    for details in errors:
        if details["type"] == "missing" and details["loc"] in misspelt:
            continue
        _add_problem(typing.cast("dict[str, Any]", details), kind, label, node, key, problems)
    invalid = {str(details["loc"][0]) for details in errors if details["loc"]}
    if not (isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(node.data, dict)):
        return None, frozenset(invalid)
    data, invalid = _without_invalid(node.data, [details["loc"] for details in errors])
    try:
        return adapter.validate_python(data), frozenset(invalid)
    except ValidationError:
        return None, frozenset(invalid)  # a required field is missing or invalid, and its problem was added above


def _misspelt_places(kind: Any, errors: Sequence[Any]) -> set[tuple[str | int, ...]]:
    """The `loc` of each field that was probably meant by an unknown name."""
    places = set()
    for details in errors:
        parent: ExpectedType | None = ExpectedType(kind)
        for step in details["loc"][:-1]:
            parent = parent.type_inside(step) if parent else None
        if details["type"] == "extra_forbidden" and parent is not None:
            similar = nearest(str(details["loc"][-1]), parent.bare_type.model_fields)
            places.add((*details["loc"][:-1], similar or ""))
    return places


def _without_invalid(data: dict[str, Any], places: Sequence[tuple[str | int, ...]]) -> tuple[dict[str, Any], set[str]]:
    """`data` without its invalid fields, and their names. `places` has the `loc` of each error.

    If a dim is invalid, only this dim is removed. An invalid input remains, but without its fields, because profiles and
    dims name it. In both cases, the field (`dims` or `inputs`) does not count as invalid.
    """
    remaining = dict(data)
    invalid = set()
    for loc in places:
        name = str(loc[0]) if loc else ""
        if name == "dims" and len(loc) > 1:
            remaining[name] = {dim: value for dim, value in remaining[name].items() if dim != loc[1]}
        elif name == "inputs" and len(loc) > 1 and "[key]" not in loc:
            remaining[name] = {**remaining[name], str(loc[1]): None}
        else:
            invalid.add(name)
    return {name: value for name, value in remaining.items() if name not in invalid}, invalid


#: `id` of a kind → the kind and its adapter. Kinds with metadata have no hash. The kind is stored, so its id stays valid.
_adapters: dict[int, tuple[Any, TypeAdapter[Any]]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if id(kind) not in _adapters:
        _adapters[id(kind)] = (kind, TypeAdapter(kind))
    return _adapters[id(kind)][1]


class _Location(NamedTuple):
    """The node to which a `loc` leads, the place of its key, its expected type, and the expected type of its parent.

    If the YAML text lacks the node, `node` is the innermost one that it has. `expected` is None if it is unknown."""

    node: Node
    key_origin: Origin
    expected: ExpectedType | None
    parent: ExpectedType


def _locate(loc: tuple[str | int, ...], kind: Any, root: Node, key: Origin) -> _Location:
    """Follow `loc` from `root`, a value of `kind`. `key` is the place of the name of `root`."""
    node, key_origin = root, key
    expected: ExpectedType | None = ExpectedType(kind)
    parent = ExpectedType(kind)
    for step in loc:
        # Short forms are expanded before the check, so `loc` may have steps that are not in the YAML text.
        if isinstance(step, str) and step in node.items:
            key_origin, node = node.keys[step], node.items[step]
        elif isinstance(step, int) and step < len(node.elements):
            node = node.elements[step]
            key_origin = node.origin
        if expected is not None:
            parent, expected = expected, expected.type_inside(step)
    return _Location(node, key_origin, expected, parent)


def _add_problem(details: dict[str, Any], kind: Any, label: str, root: Node, key: Origin, problems: Problems) -> None:
    """Add the problem of one pydantic error, `details`. The other arguments are those of `check_fields`."""
    error, context, value = details["type"], details.get("ctx", {}), details.get("input")
    loc: tuple[str | int, ...] = details["loc"]
    # pydantic ends the `loc` of an invalid key with "[key]". An unknown field may also have this name.
    is_about_key = loc[-1:] == ("[key]",) and error != "extra_forbidden"
    if is_about_key:
        loc = loc[:-1]
    node, key_origin, expected, parent = _locate(loc, kind, root, key)
    name = loc[-1] if loc else None
    if error == "trtbuild":
        # For a whole mapping, the place of its key is clearer than the place of its first field.
        is_mapping = is_about_key or isinstance(value, dict | BaseModel) or node.items
        problems.add(key_origin if is_mapping else node.origin, context["text"], context["hint"])
    elif error == "extra_forbidden":
        known = list(parent.bare_type.model_fields)
        problems.add(key_origin, f"unknown field {name!r}", suggestion(str(name), known, "fields here"))
    elif error == "missing":
        words = allowed_text(expected) if expected else "a value"
        problems.add(key_origin, f"the field `{name}` is missing", f"`{name}` is {words}")
    elif is_about_key:
        key_types = typing.get_args(parent.bare_type)
        words = allowed_text(ExpectedType(key_types[0])) if key_types else "a name"
        problems.add(key_origin, f"{name!r} cannot be a name here", f"it must be {words}")
    else:
        words = allowed_text(expected) if expected else "another value"
        if error == "less_than_equal" and "≥" in words:  # `allowed_text` does not name this large bound
            words = f"at most {context['le']}"
        last = next((step for step in reversed(loc) if isinstance(step, str)), label)
        subject = f"each entry of `{last}`" if isinstance(name, int) else f"`{last}`"
        hint = _hint(error, value, expected, last)
        found = f"a list of {len(value)}" if error == "too_long" and isinstance(value, list) else kind_of(value)
        problems.add(node.origin, f"{subject} must be {words}, not {found}", hint)


def _hint(error: str, value: Any, expected: ExpectedType | None, last: str) -> str | None:
    kind = expected.bare_type if expected else None
    if kind is bool and (word := _BOOLEAN_WORDS.get(str(value).casefold())):
        return f"write {word}"
    if error == "literal_error":
        choices = [str(choice) for choice in typing.get_args(kind)]
        similar = SYNONYMS.get(str(value).casefold()) or nearest(str(value), choices)
        return f"did you mean {similar!r}?" if similar in choices and similar != str(value) else None
    if kind is int:
        return _number_hint(value, last)
    if kind is str and isinstance(value, bool | int | float):
        return "put it in quotes"
    if kind is SourceFields and isinstance(value, str):
        return f'write {{python: "{value}"}}'
    if kind is InputFields and isinstance(value, str):
        return f"write {last}: {{dtype: {value}}}"
    if typing.get_origin(kind) is list and not isinstance(value, dict | list) and value is not None:
        numbers = re.findall(r"[0-9]+", str(value)) if _is_shape(expected) else []
        return f"write [{', '.join(numbers) or value}]"
    if typing.get_origin(kind) is dict and isinstance(value, list) and all(isinstance(name, str) for name in value):
        return f"write {{{', '.join(f'{name}: …' for name in value[:4])}}}"
    if isinstance(value, str) and _WORD.fullmatch(value) and last in _COMPLETIONS:
        return _COMPLETIONS[last].format(value)
    if isinstance(value, str) and "\\" in value:
        return f"write {value.replace(chr(92), '/')}"
    return None


def _number_hint(value: Any, last: str) -> str | None:
    if isinstance(value, str) and value.replace("_", "").lstrip("+-").isdecimal():
        return f"write {value.replace('_', '').lstrip('+')}, without quotes or underscores"
    if isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if value == -1 and last in ("min", "opt", "max", "shape"):
        return "a dynamic axis is a range: write its smallest size in min and its largest in max"
    return None


def _is_shape(expected: ExpectedType | None) -> bool:
    """Whether a list of sizes is expected."""
    element = expected.unwrap().type_inside(0) if expected else None
    return element is not None and element.bare_type is int
