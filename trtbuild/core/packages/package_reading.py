"""Reads a package's index from untrusted bytes into the values of `core.packages.package_index`.

Rules
1. Everything is checked: every value must have its type, and every name must refer to something that exists. If a check
   fails, the package is damaged, and no other file of it is read.
2. No path may leave the package: paths are relative, with ``/`` between the parts, and have no ``..``, drive or backslash.
3. A newer format (``trtbuild.package/4``) is refused with an error that names it. Unknown fields are ignored, because later
   versions may add fields. Format 2 is format 1 with numbers in the output structure. Format 3 is format 2 with state.
4. Fields that were added later are optional. Their default is the behaviour of packages without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.graph_kinds import GRAPH_KINDS
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.model.state import StateTensor
from trtbuild.core.packages.package_index import (
    SCHEMA,
    SCHEMA_WITH_STATE,
    SCHEMAS,
    PackageIndex,
    PackedDim,
    PackedPlugins,
    PackedProfile,
    PackedTarget,
    PackedTensor,
    PackedWeight,
    weight_path,
)
from trtbuild.core.partition.partitions import Partitions, TensorType
from trtbuild.core.recipes.record import Output, is_digest
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.expressions import Expression, evaluate, freeze, symbols_of
from trtbuild.core.values.numbers import NUMBER_TYPES, has_numbers
from trtbuild.core.values.value_ranges import InvalidRange, ValueRange, value_range
from trtbuild.errors import PackageDamaged, PackageTooNew

INDEX_FILE = "index.json"

_HINT = "build the package again, or copy it again from an undamaged source"
_FORMAT = re.compile(r"trtbuild\.package/[0-9]+")
_T = TypeVar("_T")


def read_index(data: bytes, where: str = INDEX_FILE) -> PackageIndex:
    """Read an index. `where` is its name in errors. Raises PackageDamaged and PackageTooNew."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise PackageDamaged(f"{where} is not JSON: the package is truncated or altered", hint=_HINT) from None
    return parse_index(document, where)


def parse_index(document: Any, where: str = INDEX_FILE) -> PackageIndex:
    """Return the values of an index's JSON. `where` is its name in errors. Raises PackageDamaged and PackageTooNew."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema not in SCHEMAS and _FORMAT.fullmatch(schema):
        raise PackageTooNew(
            f"{where} has the format {schema}, but this version of trtbuild reads {' and '.join(SCHEMAS)}",
            hint="upgrade trtbuild (pip install --upgrade trtbuild), or build the package with this version",
        )
    if schema not in SCHEMAS:
        raise PackageDamaged(f"{where} is not the index of a package", hint=_HINT)
    try:
        return _index(document)
    except (_InvalidIndex, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.args[0] if isinstance(error, _InvalidIndex) else f"{type(error).__name__}: {error}"
        raise PackageDamaged(f"{where} cannot be used: {reason}", hint=_HINT) from None


def check_path(path: object) -> str:
    """Return `path` if it is a path inside a package (rule 2). Raises ValueError otherwise."""
    if isinstance(path, str) and path and not any(mark in path for mark in ("\0", "\\", ":")):
        parts = path.split("/")
        if all(part not in ("", ".", "..") for part in parts):
            return path
    raise ValueError(f"{path!r:.80} is not a path inside a package")


class _InvalidIndex(Exception):
    """The document breaks a rule. The text describes the problem."""


def _index(document: Mapping[str, Any]) -> PackageIndex:
    files = {check_path(path): _file(entry) for path, entry in _mapping(document, "files").items()}
    dims = tuple(_dim(entry) for entry in _list(document, "dims"))
    inputs = tuple(_tensor(entry, len(dims)) for entry in _list(document, "inputs"))
    outputs = tuple(_tensor(entry, len(dims)) for entry in _list(document, "outputs"))
    for field, names in (("inputs", [i.name for i in inputs]), ("dims", [d.name for d in dims])):
        _expect(len(set(names)) == len(names), f"two {field} have one name")
    profiles = tuple(_profile(entry, inputs) for entry in _list(document, "profiles"))
    _expect(bool(profiles), "it has no profile")
    reference = document.get("reference", False)
    _expect(isinstance(reference, bool), "reference is neither true nor false")
    weights = {int(slot): _weight(entry, files) for slot, entry in _mapping(document, "weights").items()}
    state = tuple(map(StateTensor.from_json, _list(document, "state") if "state" in document else []))
    output_count = _count_outputs(state, len(outputs), weights)
    targets = {}
    for name, entry in _mapping(document, "targets").items():
        targets[name] = target = _target(name, entry, files)
        _check_partitions(target, len(inputs) + len(state), output_count, len(dims), weights, reference)
    _expect(bool(targets), "it has no target")
    tree = document["output_tree"]
    leaves = sorted(set(_leaves(tree, outputs)))
    _expect(leaves == list(range(len(outputs))), "its output structure does not fit its outputs")
    _expect(
        document["schema"] == SCHEMA_WITH_STATE or not state,
        f"it has a state, which {document['schema']} does not have",
    )
    _expect(
        document["schema"] != SCHEMA or not has_numbers(tree),
        f"its output structure has a number, which {document['schema']} does not have",
    )
    model, precision = _text(document, "model"), _text(document, "precision")
    truncates = document.get("truncate_double", False)
    _expect(isinstance(truncates, bool), "truncate_double is neither true nor false")
    quantized = _list(document, "quantized") if "quantized" in document else []
    _expect(all(type_ and isinstance(type_, str) for type_ in quantized), "a quantized type is not text")
    others = _list(document, "other_precisions") if "other_precisions" in document else []
    _expect(all(name and isinstance(name, str) for name in others), "other_precisions has a name that is not text")
    operators = tuple(map(CustomOperator.from_json, _list(document, "operators") if "operators" in document else []))
    parts = (model, inputs, outputs, tree, dims, profiles, precision, targets, reference, weights, files)
    return PackageIndex(*parts, truncates, tuple(quantized), tuple(others), operators, state, _plugins(document, files))


def _count_outputs(state: Sequence[StateTensor], outputs: int, weights: Mapping[int, PackedWeight]) -> int:
    """The number of outputs of the programs, with those that are new states only."""
    _expect(len({entry.name for entry in state}) == len(state), "two states have one name")
    _expect(all(entry.slot in weights for entry in state), "a state has no first value")
    only_states = {entry.output for entry in state if entry.output >= outputs}
    _expect(only_states == set(range(outputs, outputs + len(only_states))), "the outputs of its state have gaps")
    return outputs + len(only_states)


# -- the parts of an index


def _plugins(document: Mapping[str, Any], files: Mapping[str, Output]) -> PackedPlugins | None:
    if "plugins" not in document:
        return None
    entry = _mapping(document, "plugins")
    plugins = [tuple(plugin) for plugin in _list(entry, "plugins")]
    _expect(
        bool(plugins) and all(len(plugin) == 3 and all(isinstance(text, str) for text in plugin) for plugin in plugins),
        "a plugin has no name, version or namespace",
    )
    if "library" not in entry:
        return PackedPlugins(tuple(plugins))
    library = _text(entry, "library")
    _expect(library in files, "the library of plugins is not a file of the package")
    return PackedPlugins(tuple(plugins), library, _text(entry, "name"))


def _file(entry: Mapping[str, Any]) -> Output:
    sha256, size = entry["sha256"], entry["size"]
    _expect(is_digest(sha256) and type(size) is int and size >= 0, "a file has no digest or size")
    return Output(sha256, size)


def _dim(entry: Mapping[str, Any]) -> PackedDim:
    min_size, max_size, unit = (_size(entry[name]) for name in ("min", "max", "multiple_of"))
    _expect(min_size <= max_size and unit >= 1, f"the dim {entry['name']!r} has no valid range")
    return PackedDim(_text(entry, "name"), min_size, max_size, unit)


def _tensor(entry: Mapping[str, Any], dims: int) -> PackedTensor:
    shape = tuple(_expression(size, dims) for size in _list(entry, "shape"))
    keyword = entry.get("keyword", False)
    _expect(isinstance(keyword, bool), "keyword is neither true nor false")
    dtype = _dtype(entry["dtype"])
    return PackedTensor(_text(entry, "name"), dtype, shape, keyword, _value_range(entry, dtype))


def _value_range(entry: Mapping[str, Any], dtype: str) -> ValueRange | None:
    if "range" not in entry:
        return None
    ends = _list(entry, "range")
    values = value_range(dtype, *ends) if len(ends) == 2 else None
    if values is None or isinstance(values, InvalidRange):
        raise _InvalidIndex(f"the range of {entry['name']!r} is not valid")
    return values


def _profile(entry: Mapping[str, Any], inputs: Sequence[PackedTensor]) -> PackedProfile:
    shapes = _mapping(entry, "shapes")
    _expect(set(shapes) == {tensor.name for tensor in inputs}, "a profile has shapes for other inputs")
    ranges = []
    for tensor in inputs:
        shape_range = ShapeRange(
            *(tuple(_size(size) for size in _list(shapes[tensor.name], which)) for which in ("min", "opt", "max"))
        )
        ranks = {len(shape_range.min), len(shape_range.opt), len(shape_range.max), len(tensor.shape)}
        _expect(len(ranks) == 1, f"a profile's shapes of {tensor.name!r} have another rank than the input")
        ranges.append(shape_range)
    return PackedProfile(_text(entry, "name"), tuple(ranges))


def _weight(entry: Mapping[str, Any], files: Mapping[str, Output]) -> PackedWeight:
    dtype, shape, sha256 = _dtype(entry["dtype"]), tuple(_size(size) for size in _list(entry, "shape")), entry["sha256"]
    _expect(is_digest(sha256), "a weight has no digest")
    path = weight_path(sha256)
    size = ELEMENT_TYPES[dtype].itemsize
    for length in shape:
        size *= length
    _expect(files.get(path) == Output(sha256, size), f"the weight {entry['name']!r} is not a file of the package")
    return PackedWeight(_text(entry, "name"), dtype, shape, path)


def _target(name: str, entry: Mapping[str, Any], files: Mapping[str, Output]) -> PackedTarget:
    document = entry["partitions"]
    partitions = Partitions.from_json(document)
    programs = {}
    for graph, sha256 in _mapping(document, "programs").items():
        paths = [kind.program_path(sha256) for kind in GRAPH_KINDS.values()]
        programs[graph] = next((path for path in paths if path in files), paths[0])
        file = files.get(programs[graph])
        _expect(file is not None and file.sha256 == sha256, "a program is not a file of the package")
    engines = _mapping(entry, "engines")
    layers = _mapping(entry, "layers") if "layers" in entry else {}
    for path in (*engines.values(), *layers.values()):
        _expect(path in files, f"{path!r} is not a file of the package")
    compatible = entry.get("version_compatible", False)
    _expect(isinstance(compatible, bool), "version_compatible is neither true nor false")
    excluded = entry.get("exclude_lean_runtime", False)
    _expect(isinstance(excluded, bool), "exclude_lean_runtime is neither true nor false")
    sm = _size(entry["sm"])
    sms = tuple(_size(number) for number in entry["sms"]) if "sms" in entry else (sm,)
    return PackedTarget(
        name=name,
        sm=sm,
        sms=sms,
        toolchain=_text(entry, "toolchain"),
        version=_text(entry, "version"),
        version_compatible=compatible,
        compatibility=_text(entry, "compatibility"),
        platform=_text(entry, "platform"),
        partitions=partitions,
        programs=programs,
        engines=engines,
        layers=layers,
        exclude_lean_runtime=excluded,
    )


def _check_partitions(
    target: PackedTarget, inputs: int, outputs: int, dims: int, weights: Mapping[int, PackedWeight], reference: bool
) -> None:
    """Check that each partition has its engine or program, and that earlier partitions produce all its inputs."""
    available = {f"input:{number}" for number in range(inputs)} | {f"weight:{slot}" for slot in weights}
    for partition in target.partitions.partitions:
        _expect(f"{partition.name}:0" not in available, f"two partitions are called {partition.name!r}")
        _expect(partition.kind in ("tensorrt", "torch"), f"the partition {partition.name!r} has an unknown kind")
        if partition.kind == "tensorrt":
            _expect(partition.name in target.engines, f"the partition {partition.name!r} has no engine")
        if partition.kind == "torch" or reference:
            _expect(partition.graph in target.programs, f"the partition {partition.name!r} has no program")
            _expect(weights.keys() >= set(partition.weights), f"the partition {partition.name!r} lacks weights")
        _expect(all(type(call) is int for call in partition.calls), f"the calls of {partition.name!r} are not numbers")
        _expect(
            all(isinstance(reason, str) for reason in partition.reasons.values()),
            f"a reason of {partition.name!r} is not text",
        )
        for source, kind in partition.inputs:
            _expect(source in available, f"the partition {partition.name!r} reads {source!r}, which nothing produces")
            _check_type(kind, dims)
        for number, kind in enumerate(partition.outputs):
            available.add(f"{partition.name}:{number}")
            _check_type(kind, dims)
    _expect(len(target.partitions.outputs) == outputs, "its number of outputs is not the model's")
    for source in target.partitions.outputs:
        _expect(source in available, f"an output is {source!r}, which nothing produces")


def _check_type(kind: TensorType, dims: int) -> None:
    _dtype(kind.dtype)
    for size in kind.shape:
        _expression(size, dims)


def _leaves(tree: Any, outputs: Sequence[PackedTensor]) -> Iterator[int]:
    """The positions of the outputs in an output structure."""
    kind = tree["kind"]
    if kind == "tensor":
        _expect(type(tree["index"]) is int, "its output structure has no numbers")
        yield tree["index"]
    elif kind == "number":
        index = tree["index"]
        _expect(type(index) is int and 0 <= index < len(outputs), "its output structure does not fit its outputs")
        tensor = outputs[index]
        _expect(
            tree["type"] in NUMBER_TYPES and (tensor.dtype, tensor.shape) == (NUMBER_TYPES[tree["type"]], ()),
            f"the number {tensor.name!r} is not a scalar of its type",
        )
        yield index
    elif kind not in ("none", "constant"):
        _expect(
            kind in ("list", "tuple", "dict", "namedtuple", "dataclass"),
            f"an output structure has the unknown kind {kind!r}",
        )
        if kind not in ("list", "tuple"):
            _expect(len(tree["keys"]) == len(tree["items"]), "an output structure has items without keys")
        for item in _list(tree, "items"):
            yield from _leaves(item, outputs)


# -- kinds of values


def _expression(value: Any, dims: int) -> Expression:
    """The size expression in `value`, over `dims` symbols."""
    if type(value) is int:
        return value
    _expect(isinstance(value, list) and bool(value) and isinstance(value[0], str), f"{value!r:.80} is not a size")
    _expect(all(0 <= symbol < dims for symbol in symbols_of(value)), f"{value!r:.80} has a symbol without a dim")
    if not _depends_on_data(value):
        try:
            evaluate(value, [1] * dims)
        except ValueError as error:
            _expect("by zero" in str(error) or "is not a size" in str(error), f"{value!r:.80} is not a size: {error}")
    return freeze(value)


def _depends_on_data(value: Any) -> bool:
    return isinstance(value, list) and (value[0] == "data" or any(_depends_on_data(part) for part in value[1:]))


def _mapping(entry: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    return _checked_field(entry, field, lambda value: isinstance(value, dict), "a mapping")  # type: ignore[no-any-return]


def _list(entry: Mapping[str, Any], field: str) -> list[Any]:
    return _checked_field(entry, field, lambda value: isinstance(value, list), "a list")  # type: ignore[no-any-return]


def _text(entry: Mapping[str, Any], field: str) -> str:
    return _checked_field(entry, field, lambda value: isinstance(value, str) and bool(value), "text")  # type: ignore[no-any-return]


def _checked_field(entry: Mapping[str, Any], field: str, is_valid: Callable[[Any], bool], kind: str) -> Any:
    _expect(isinstance(entry, dict) and field in entry, f"the field `{field}` is missing")
    _expect(is_valid(entry[field]), f"the field `{field}` is not {kind}")
    return entry[field]


def _size(value: Any) -> int:
    _expect(type(value) is int and value >= 0, f"{value!r:.40} is not a size")
    return int(value)


def _dtype(value: Any) -> str:
    _expect(isinstance(value, str) and value in ELEMENT_TYPES, f"{value!r:.40} is not an element type")
    return str(value)


def _expect(condition: bool, text: str) -> None:
    if not condition:
        raise _InvalidIndex(text)
