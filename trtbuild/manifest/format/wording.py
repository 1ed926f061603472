"""Pydantic's errors in our words, at the node they are about: what was given, what is allowed, and the nearest name.

pydantic names a place by a `loc` such as ``("inputs", "image", "dtype")``. The same path leads through the node tree (to a
line and column) and through the field models (to what is allowed there).
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, TypeAdapter, ValidationError

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest, suggestion
from trtbuild.manifest.format.fields import InputFields, SourceFields
from trtbuild.manifest.format.kinds import SYNONYMS, Allowed
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, kind_of

#: What people write where YAML 1.2 wants true or false.
_BOOLEAN_WORDS = {
    "yes": "true", "on": "true", "y": "true", "1": "true", "true": "true",
    "no": "false", "off": "false", "n": "false", "0": "false", "false": "false",
}  # fmt: skip

_WORD = re.compile(r"[A-Za-z_]\w*")
#: Where a single word stands for a part of what is wanted: what the whole may be.
_COMPLETED = {"torch_executed_ops": "write aten.{}", "at": "write {}.0 for its first axis"}


class Expected(NamedTuple):
    """What may stand at a place: a type, and what more is known about it."""

    annotation: Any
    metadata: tuple[Any, ...] = ()

    @property
    def bare(self) -> Any:
        """The type without None and without its metadata."""
        return self.unwrapped().annotation

    def unwrapped(self) -> Expected:
        """Annotated and ``| None`` taken off; their metadata kept."""
        annotation, metadata = self
        while True:
            if typing.get_origin(annotation) is Annotated:
                annotation, *more = typing.get_args(annotation)
                metadata = (*metadata, *more)
            elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
                kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
                if len(kinds) != 1:
                    return Expected(annotation, metadata)
                annotation = kinds[0]
            else:
                return Expected(annotation, tuple(_flat(metadata)))

    def inside(self, step: str | int) -> Expected | None:
        """What may stand at a field, key or element of a value of this kind."""
        kind = self.bare
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            info = kind.model_fields.get(str(step))
            return None if info is None else Expected(info.annotation, tuple(info.metadata))
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) is dict:
            return Expected(arguments[1])
        if typing.get_origin(kind) is list and isinstance(step, int):
            return Expected(arguments[0])
        return None


def _flat(metadata: Sequence[Any]) -> list[Any]:
    """`Field(ge=1)` inside Annotated is a FieldInfo that holds its constraints."""
    found: list[Any] = []
    for entry in metadata:
        found += list(getattr(entry, "metadata", ())) or [entry]
    return found


def allowed(expected: Expected) -> str:
    """What may be written, in words that fit behind "must be"."""
    kind, metadata = expected.unwrapped()
    for entry in metadata:
        if isinstance(entry, Allowed):
            return entry.text
    if typing.get_origin(kind) is Literal:
        choices = [str(choice) for choice in typing.get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if kind is bool:
        return "true or false"
    if kind is int:
        low = next((entry.ge for entry in metadata if isinstance(entry, Ge)), None)
        low = next((f"> {entry.gt}" for entry in metadata if isinstance(entry, Gt)), low)
        high = next((entry.le for entry in metadata if isinstance(entry, Le)), None)
        if isinstance(high, int) and high < 2**31 - 1:  # int32's own bound is nothing that a person needs to read
            return f"a whole number from {low} to {high}"
        return "a whole number" if low is None else f"a whole number ≥ {low}"
    if kind is str:
        return "text"
    if typing.get_origin(kind) is list:
        return "a list"
    return "a mapping"


def check(kind: Any, name: str, node: Node, key: Origin, problems: Problems) -> Any | None:
    """`node` as a value of `kind`; or None, and what is wrong is added. `name` is its name, which stands at `key`."""
    value, _ = check_fields(kind, name, node, key, problems)
    return value


def check_fields(
    kind: Any, label: str, node: Node, key: Origin, problems: Problems
) -> tuple[Any | None, frozenset[str]]:
    """As `check`, but a fields model with wrong fields is given without them, and their names beside it.

    So that what depends on the other fields is still checked, and all problems are found at once.
    """
    adapter = _adapter(kind)
    try:
        return adapter.validate_python(node.data), frozenset()
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True)
    misspelt = _misspelt(kind, found)
    for details in found:
        if details["type"] == "missing" and details["loc"] in misspelt:
            continue
        _add(typing.cast("dict[str, Any]", details), kind, label, node, key, problems)
    broken = {str(details["loc"][0]) for details in found if details["loc"]}
    if not (isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(node.data, dict)):
        return None, frozenset(broken)
    data, broken = _salvage(node.data, [details["loc"] for details in found])
    try:
        return adapter.validate_python(data), frozenset(broken)
    except ValidationError:
        return None, frozenset(broken)  # what is left lacks a required field, which has been said


def _misspelt(kind: Any, found: Sequence[Any]) -> set[tuple[str | int, ...]]:
    """The places of fields that stand there under a name that is unknown, and nearest to theirs."""
    places = set()
    for details in found:
        parent: Expected | None = Expected(kind)
        for step in details["loc"][:-1]:
            parent = parent.inside(step) if parent else None
        if details["type"] == "extra_forbidden" and parent is not None:
            like = nearest(str(details["loc"][-1]), parent.bare.model_fields)
            places.add((*details["loc"][:-1], like or ""))
    return places


def _salvage(data: dict[str, Any], wrong: Sequence[tuple[str | int, ...]]) -> tuple[dict[str, Any], set[str]]:
    """`data` without what is wrong, and the fields that had to go whole.

    A wrong dim goes alone; a wrong input stays as one without fields, because profiles and dims name it.
    """
    left = dict(data)
    broken = set()
    for loc in wrong:
        name = str(loc[0]) if loc else ""
        if name == "dims" and len(loc) > 1:
            left[name] = {dim: value for dim, value in left[name].items() if dim != loc[1]}
        elif name == "inputs" and len(loc) > 1 and "[key]" not in loc:
            left[name] = {**left[name], str(loc[1]): None}
        else:
            broken.add(name)
    return {name: value for name, value in left.items() if name not in broken}, broken


#: By identity, because kinds with metadata have no hash. The kind is kept too, so that its identity stays its own.
_adapters: dict[int, tuple[Any, TypeAdapter[Any]]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if id(kind) not in _adapters:
        _adapters[id(kind)] = (kind, TypeAdapter(kind))
    return _adapters[id(kind)][1]


def _add(details: dict[str, Any], kind: Any, label: str, root: Node, key: Origin, problems: Problems) -> None:
    error, context, given = details["type"], details.get("ctx", {}), details.get("input")
    loc: tuple[str | int, ...] = details["loc"]
    # So pydantic says that a key of a mapping is wrong, and not its value. (Or somebody made up a field of that name.)
    about_key = loc[-1:] == ("[key]",) and error != "extra_forbidden"
    if about_key:
        loc = loc[:-1]
    node, origin, at_key = root, root.origin, key
    expected: Expected | None = Expected(kind)
    parent = Expected(kind)
    for step in loc:
        # Shorthands are expanded before they are checked, so `loc` may have steps that the text has not.
        if isinstance(step, str) and step in node.items:
            at_key, node = node.keys[step], node.items[step]
            origin = node.origin
        elif isinstance(step, int) and step < len(node.elements):
            node = node.elements[step]
            origin = at_key = node.origin
        if expected is not None:
            parent, expected = expected, expected.inside(step)
    name = loc[-1] if loc else None
    if error == "trtbuild":
        # About a mapping as a whole (a missing part), the key says more than the first field does.
        whole = about_key or isinstance(given, dict | BaseModel) or node.items
        problems.add(at_key if whole else origin, context["text"], context["hint"])
    elif error == "extra_forbidden":
        known = list(parent.bare.model_fields)
        problems.add(at_key, f"unknown field {name!r}", suggestion(str(name), known, "fields here"))
    elif error == "missing":
        words = allowed(expected) if expected else "a value"
        problems.add(at_key, f"the field `{name}` is missing", f"`{name}` is {words}")
    elif about_key:
        words = allowed(Expected(typing.get_args(parent.bare)[0])) if typing.get_args(parent.bare) else "a name"
        problems.add(at_key, f"{name!r} cannot be a name here", f"it must be {words}")
    else:
        words = allowed(expected) if expected else "another value"
        if error == "less_than_equal" and "≥" in words:  # the bound that is too large to be told otherwise
            words = f"at most {context['le']}"
        last = next((step for step in reversed(loc) if isinstance(step, str)), label)
        what = f"each entry of `{last}`" if isinstance(name, int) else f"`{last}`"
        problems.add(origin, f"{what} must be {words}, not {kind_of(given)}", _hint(error, given, expected, last))


def _hint(error: str, given: Any, expected: Expected | None, last: str) -> str | None:
    kind = expected.bare if expected else None
    if kind is bool and (word := _BOOLEAN_WORDS.get(str(given).casefold())):
        return f"write {word}"
    if error == "literal_error":
        choices = [str(choice) for choice in typing.get_args(kind)]
        like = SYNONYMS.get(str(given).casefold()) or nearest(str(given), choices)
        return f"did you mean {like!r}?" if like in choices and like != str(given) else None
    if kind is int:
        return _number_hint(given, last)
    if kind is str and isinstance(given, bool | int | float):
        return "put it in quotes"
    if kind is SourceFields and isinstance(given, str):
        return f'write {{python: "{given}"}}'
    if kind is InputFields and isinstance(given, str):
        return f"write {last}: {{dtype: {given}}}"
    if typing.get_origin(kind) is list and not isinstance(given, dict | list) and given is not None:
        numbers = re.findall(r"[0-9]+", str(given)) if _is_shape(expected) else []
        return f"write [{', '.join(numbers) or given}]"
    if typing.get_origin(kind) is dict and isinstance(given, list) and all(isinstance(name, str) for name in given):
        return f"write {{{', '.join(f'{name}: …' for name in given[:4])}}}"
    if isinstance(given, str) and _WORD.fullmatch(given) and last in _COMPLETED:
        return _COMPLETED[last].format(given)
    if isinstance(given, str) and "\\" in given:
        return f"write {given.replace(chr(92), '/')}"
    return None


def _number_hint(given: Any, last: str) -> str | None:
    if isinstance(given, str) and given.replace("_", "").lstrip("+-").isdecimal():
        return f"write {given.replace('_', '').lstrip('+')}, without quotes or underscores"
    if isinstance(given, float) and given.is_integer():
        return f"write {int(given)}"
    if given == -1 and last in ("min", "opt", "max", "shape"):
        return "a dynamic axis is a range: write its smallest size in min and its largest in max"
    return None


def _is_shape(expected: Expected | None) -> bool:
    """Whether a list of sizes may stand there."""
    element = expected.unwrapped().inside(0) if expected else None
    return element is not None and element.bare is int
