"""Reads a package's index from untrusted bytes into the values of `core.packages.package_index`, and refuses newer formats.

Rules
1. Every value must have its type, and every name must refer to something that exists. If a check fails, the package is
   damaged, and none of its other files is read.
2. No path may leave the package: paths are relative, with ``/`` between the parts, and have no ``..``, drive or backslash.
3. A newer format (``trtbuild.package/4``) is refused with an error that names it. Format 2 is format 1 with numbers in the
   output structure. Format 3 is format 2 with state.
4. Unknown fields are ignored, because later versions may add fields. Fields that were added later are optional. Their
   default is the behaviour of packages without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.graph_kinds import GRAPH_KINDS
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.model.state import StateTensor
from trtbuild.core.packages.checked_fields import (
    InvalidIndex,
    checked_dtype,
    checked_expression,
    checked_size,
    expect,
    list_field,
    mapping_field,
    optional_flag,
    optional_list,
    text_field,
)
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
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.encoding import from_json, is_digest
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
    """Read an index from its JSON. `where` is its name in errors. Raises PackageDamaged and PackageTooNew."""
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
    except (InvalidIndex, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.args[0] if isinstance(error, InvalidIndex) else f"{type(error).__name__}: {error}"
        raise PackageDamaged(f"{where} cannot be used: {reason}", hint=_HINT) from None


def check_path(path: object) -> str:
    """Return `path` if it is a path inside a package (rule 2). Raises ValueError otherwise."""
    if isinstance(path, str) and path and not any(mark in path for mark in ("\0", "\\", ":")):
        parts = path.split("/")
        if all(part not in ("", ".", "..") for part in parts):
            return path
    raise ValueError(f"{path!r:.80} is not a path inside a package")


def _index(document: Mapping[str, Any]) -> PackageIndex:
    files = {check_path(path): _file(entry) for path, entry in mapping_field(document, "files").items()}
    dims = tuple(_dim(entry) for entry in list_field(document, "dims"))
    inputs = tuple(_tensor(entry, len(dims)) for entry in list_field(document, "inputs"))
    outputs = tuple(_tensor(entry, len(dims)) for entry in list_field(document, "outputs"))
    for field, names in (("inputs", [tensor.name for tensor in inputs]), ("dims", [dim.name for dim in dims])):
        expect(len(set(names)) == len(names), f"two {field} have one name")
    profiles = tuple(_profile(entry, inputs) for entry in list_field(document, "profiles"))
    expect(bool(profiles), "it has no profile")
    reference = optional_flag(document, "reference")
    weights = {int(slot): _weight(entry, files) for slot, entry in mapping_field(document, "weights").items()}
    state = tuple(map(StateTensor.from_json, optional_list(document, "state")))
    output_count = _count_outputs(state, len(outputs), weights)
    targets = {}
    for name, entry in mapping_field(document, "targets").items():
        targets[name] = target = _target(name, entry, files)
        _check_partitions(target, len(inputs) + len(state), output_count, len(dims), weights, reference)
    expect(bool(targets), "it has no target")
    tree = document["output_tree"]
    leaves = sorted(set(_leaves(tree, outputs)))
    expect(leaves == list(range(len(outputs))), "its output structure does not fit its outputs")
    expect(
        document["schema"] == SCHEMA_WITH_STATE or not state,
        f"it has a state, which {document['schema']} does not have",
    )
    expect(
        document["schema"] != SCHEMA or not has_numbers(tree),
        f"its output structure has a number, which {document['schema']} does not have",
    )
    quantized = optional_list(document, "quantized")
    expect(all(type_ and isinstance(type_, str) for type_ in quantized), "a quantized type is not text")
    others = optional_list(document, "other_precisions")
    expect(all(name and isinstance(name, str) for name in others), "other_precisions has a name that is not text")
    return PackageIndex(
        model=text_field(document, "model"),
        inputs=inputs,
        outputs=outputs,
        output_tree=tree,
        dims=dims,
        profiles=profiles,
        precision=text_field(document, "precision"),
        targets=targets,
        reference=reference,
        weights=weights,
        files=files,
        truncates_double=optional_flag(document, "truncate_double"),
        quantized=tuple(quantized),
        other_precisions=tuple(others),
        operators=tuple(map(CustomOperator.from_json, optional_list(document, "operators"))),
        state=state,
        plugins=_plugins(document, files),
    )


def _count_outputs(state: Sequence[StateTensor], outputs: int, weights: Mapping[int, PackedWeight]) -> int:
    """The number of values that a call computes: the model's `outputs`, and the new states that the model does not return.

    Raises InvalidIndex if the states are not valid."""
    expect(len({entry.name for entry in state}) == len(state), "two states have one name")
    expect(all(entry.slot in weights for entry in state), "a state has no first value")
    only_states = {entry.output for entry in state if entry.output >= outputs}
    expect(only_states == set(range(outputs, outputs + len(only_states))), "the outputs of its state have gaps")
    return outputs + len(only_states)


# -- the parts of an index


def _plugins(document: Mapping[str, Any], files: Mapping[str, Output]) -> PackedPlugins | None:
    if "plugins" not in document:
        return None
    entry = mapping_field(document, "plugins")
    plugins = [tuple(plugin) if isinstance(plugin, list) else () for plugin in list_field(entry, "plugins")]
    expect(
        bool(plugins) and all(len(plugin) == 3 and all(isinstance(text, str) for text in plugin) for plugin in plugins),
        "a plugin has no name, version or namespace",
    )
    if "library" not in entry:
        return PackedPlugins(tuple(plugins))
    library = text_field(entry, "library")
    expect(library in files, "the library of plugins is not a file of the package")
    return PackedPlugins(tuple(plugins), library, text_field(entry, "name"))


def _file(entry: Mapping[str, Any]) -> Output:
    sha256, size = entry["sha256"], entry["size"]
    expect(is_digest(sha256) and type(size) is int and size >= 0, "a file has no digest or size")
    return Output(sha256, size)


def _dim(entry: Mapping[str, Any]) -> PackedDim:
    min_size, max_size, unit = (checked_size(entry[name]) for name in ("min", "max", "multiple_of"))
    expect(min_size <= max_size and unit >= 1, f"the dim {entry['name']!r} has no valid range")
    return PackedDim(text_field(entry, "name"), min_size, max_size, unit)


def _tensor(entry: Mapping[str, Any], dims: int) -> PackedTensor:
    shape = tuple(checked_expression(size, dims) for size in list_field(entry, "shape"))
    keyword = optional_flag(entry, "keyword")
    dtype = checked_dtype(entry["dtype"])
    return PackedTensor(text_field(entry, "name"), dtype, shape, keyword, _value_range(entry, dtype))


def _value_range(entry: Mapping[str, Any], dtype: str) -> ValueRange | None:
    if "range" not in entry:
        return None
    ends = list_field(entry, "range")
    values = value_range(dtype, *ends) if len(ends) == 2 else None
    if values is None or isinstance(values, InvalidRange):
        raise InvalidIndex(f"the range of {entry['name']!r} is not valid")
    return values


def _profile(entry: Mapping[str, Any], inputs: Sequence[PackedTensor]) -> PackedProfile:
    shapes = mapping_field(entry, "shapes")
    expect(set(shapes) == {tensor.name for tensor in inputs}, "a profile has shapes for other inputs")
    ranges = []
    for tensor in inputs:
        shape_range = ShapeRange(
            *(
                tuple(checked_size(size) for size in list_field(shapes[tensor.name], which))
                for which in ("min", "opt", "max")
            )
        )
        ranks = {len(shape_range.min), len(shape_range.opt), len(shape_range.max), len(tensor.shape)}
        expect(len(ranks) == 1, f"a profile's shapes of {tensor.name!r} have another rank than the input")
        ranges.append(shape_range)
    return PackedProfile(text_field(entry, "name"), tuple(ranges))


def _weight(entry: Mapping[str, Any], files: Mapping[str, Output]) -> PackedWeight:
    dtype, sha256 = checked_dtype(entry["dtype"]), entry["sha256"]
    shape = tuple(checked_size(length) for length in list_field(entry, "shape"))
    expect(is_digest(sha256), "a weight has no digest")
    path = weight_path(sha256)
    size = ELEMENT_TYPES[dtype].itemsize
    for length in shape:
        size *= length
    expect(files.get(path) == Output(sha256, size), f"the weight {entry['name']!r} is not a file of the package")
    return PackedWeight(text_field(entry, "name"), dtype, shape, path)


def _target(name: str, entry: Mapping[str, Any], files: Mapping[str, Output]) -> PackedTarget:
    document = entry["partitions"]
    partitions = Partitions.from_json(document)
    programs = {}
    for graph, sha256 in mapping_field(document, "programs").items():
        paths = [kind.program_path(sha256) for kind in GRAPH_KINDS.values()]
        programs[graph] = next((path for path in paths if path in files), paths[0])
        file = files.get(programs[graph])
        expect(file is not None and file.sha256 == sha256, "a program is not a file of the package")
    engines = mapping_field(entry, "engines")
    layers = mapping_field(entry, "layers") if "layers" in entry else {}
    for path in (*engines.values(), *layers.values()):
        expect(path in files, f"{path!r} is not a file of the package")
    compatible = optional_flag(entry, "version_compatible")
    excluded = optional_flag(entry, "exclude_lean_runtime")
    sm = checked_size(entry["sm"])
    sms = tuple(checked_size(number) for number in entry["sms"]) if "sms" in entry else (sm,)
    return PackedTarget(
        name=name,
        sm=sm,
        sms=sms,
        toolchain=text_field(entry, "toolchain"),
        version=text_field(entry, "version"),
        version_compatible=compatible,
        compatibility=text_field(entry, "compatibility"),
        platform=text_field(entry, "platform"),
        partitions=partitions,
        programs=programs,
        engines=engines,
        layers=layers,
        exclude_lean_runtime=excluded,
    )


def _check_partitions(
    target: PackedTarget, inputs: int, outputs: int, dims: int, weights: Mapping[int, PackedWeight], reference: bool
) -> None:
    """Check that each partition has its engine or program, and reads only values that exist when it runs."""
    available = {f"input:{number}" for number in range(inputs)} | {f"weight:{slot}" for slot in weights}
    names: set[str] = set()
    for partition in target.partitions.partitions:
        expect(partition.name not in names, f"two partitions are called {partition.name!r}")
        names.add(partition.name)
        expect(partition.kind in ("tensorrt", "torch"), f"the partition {partition.name!r} has an unknown kind")
        if partition.kind == "tensorrt":
            expect(partition.name in target.engines, f"the partition {partition.name!r} has no engine")
        if partition.kind == "torch" or reference:
            expect(partition.graph in target.programs, f"the partition {partition.name!r} has no program")
            expect(weights.keys() >= set(partition.weights), f"the partition {partition.name!r} lacks weights")
        expect(all(type(call) is int for call in partition.calls), f"the calls of {partition.name!r} are not numbers")
        expect(
            all(isinstance(reason, str) for reason in partition.reasons.values()),
            f"a reason of {partition.name!r} is not text",
        )
        for source, tensor_type in partition.inputs:
            expect(source in available, f"the partition {partition.name!r} reads {source!r}, which nothing produces")
            _check_type(tensor_type, dims)
        for number, tensor_type in enumerate(partition.outputs):
            available.add(f"{partition.name}:{number}")
            _check_type(tensor_type, dims)
    expect(len(target.partitions.outputs) == outputs, "its number of outputs is not the model's")
    for source in target.partitions.outputs:
        expect(source in available, f"an output is {source!r}, which nothing produces")


def _check_type(tensor_type: TensorType, dims: int) -> None:
    checked_dtype(tensor_type.dtype)
    for size in tensor_type.shape:
        checked_expression(size, dims)


def _leaves(tree: Any, outputs: Sequence[PackedTensor]) -> Iterator[int]:
    """Yield the index in `outputs` of each value in an output structure."""
    kind = tree["kind"]
    if kind == "tensor":
        expect(type(tree["index"]) is int, "its output structure has no numbers")
        yield tree["index"]
    elif kind == "number":
        index = tree["index"]
        expect(type(index) is int and 0 <= index < len(outputs), "its output structure does not fit its outputs")
        tensor = outputs[index]
        expect(
            tree["type"] in NUMBER_TYPES and (tensor.dtype, tensor.shape) == (NUMBER_TYPES[tree["type"]], ()),
            f"the number {tensor.name!r} is not a scalar of its type",
        )
        yield index
    elif kind == "constant":
        from_json(tree["value"])
    elif kind != "none":
        expect(
            kind in ("list", "tuple", "dict", "namedtuple", "dataclass"),
            f"an output structure has the unknown kind {kind!r}",
        )
        if kind not in ("list", "tuple"):
            keys = list_field(tree, "keys")
            expect(len(keys) == len(tree["items"]), "an output structure has items without keys")
            expect(not any(isinstance(key, list | dict) for key in keys), "an output structure has an invalid key")
        if kind in ("namedtuple", "dataclass"):
            text_field(tree, "type")
        for item in list_field(tree, "items"):
            yield from _leaves(item, outputs)
