"""The layers of an engine, each with its origin: the module and the operator of the user's model that it comes from.

Two files of a package have the data. ``<partition>.layers.json`` has the layers of the compiled network, as TensorRT's
parser made them. ``names.json`` has the module path and operator of each ONNX node.

The parser names a layer like its node (``n6``), with a number at the end if a node becomes several layers (``n6_6``).
Layers that the parser adds (broadcasts, constants, casts) have other names. An added layer gets the origin of a layer that
reads its output, or otherwise the origin of a layer whose output it reads.

The engine's plan may name the types in which a layer is computed (`trtbuild.core.engines.plan_contents`). The plan names
layers by their nodes, so all layers of a node have the types of the node. The types of added layers are not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trtbuild.core.engines.plan_contents import PlanContents, types_of_layers
from trtbuild.core.model.quantized_types import QUANTIZED_TYPES

SCHEMA = "trtbuild.layers/1"

_NUMBERED_NAME = re.compile(r"(.+)_\d+")
#: The name of a ``tensorrt.DataType`` in a layers file → its name in `QUANTIZED_TYPES`.
_QUANTIZED_TYPES = {"int8": "int8", "fp8": "float8e4m3fn", "int4": "int4", "fp4": "float4e2m1"}


@dataclass(frozen=True)
class Layer:
    """One layer. `module` is a path in the user's model, empty for the model itself, None if it is not known.

    `reads` are the element types that the layer's kernels read, and `writes` the types that its kernels write. Both are
    None if the types are not known."""

    name: str
    type: str
    module: str | None
    operator: str | None
    reads: Sequence[str] | None = None
    writes: Sequence[str] | None = None


def read_layers(
    document: Mapping[str, Any], names: Mapping[str, Sequence[str]], contents: PlanContents | None = None
) -> list[Layer]:
    """The layers of an engine, in the order of its layers file `document`.

    `names` is the engine's entry of ``names.json``: ONNX node → module path and operator. `contents` are the contents of
    its plan, or None if they are not known. Raises ValueError, KeyError or TypeError if `document` is not a layers file.
    """
    if document["schema"] != SCHEMA:
        raise ValueError(f"not a {SCHEMA} document")
    entries = document["layers"]
    types = types_of_layers(contents.kernels) if contents is not None else {}
    layers = []
    for entry, origin in zip(entries, _origins(entries, names), strict=True):
        module, operator = origin or (None, None)
        reads, writes = _entry_of_node(entry["name"], types) or (None, None)
        layers.append(Layer(entry["name"], entry["type"], module, operator, reads, writes))
    return layers


def quantized_types(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The quantized types in a network with the layers file `document`, in the order of `QUANTIZED_TYPES`.

    Raises ValueError, KeyError or TypeError if `document` is not a layers file."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"not a {SCHEMA} document")
    found = {_QUANTIZED_TYPES.get(output["dtype"]) for entry in document["layers"] for output in entry["outputs"]}
    return tuple(type_ for type_ in QUANTIZED_TYPES if type_ in found)


#: The module path and the operator that a layer comes from.
_Origin = tuple[str, str]

_T = TypeVar("_T")


def _entry_of_node(layer: str, table: Mapping[str, _T]) -> _T | None:
    """The entry in `table` of the node of a layer, or None. `layer` is the name of the layer (``n6`` or ``n6_6``)."""
    numbered = _NUMBERED_NAME.fullmatch(layer)
    return table.get(layer) or (table.get(numbered[1]) if numbered else None)


def _origins(entries: Sequence[Mapping[str, Any]], names: Mapping[str, Sequence[str]]) -> list[_Origin | None]:
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        for tensor in entry["inputs"]:
            readers.setdefault(tensor, []).append(index)
        for output in entry["outputs"]:
            writers.setdefault(output["name"], []).append(index)
    node_origins = [_entry_of_node(entry["name"], names) for entry in entries]
    origins = [(str(origin[0]), str(origin[1])) if origin else None for origin in node_origins]
    backwards, forwards = range(len(entries) - 1, -1, -1), range(len(entries))
    # Layers are usually listed in the order in which they run. Then passes 1 and 3 reach every layer of a series of added
    # layers. Passes 2 and 4 are for another order. Pass 5 reaches constants whose reader got its origin in pass 3 or 4.
    passes = (
        (backwards, readers),
        (forwards, readers),
        (forwards, writers),
        (backwards, writers),
        (backwards, readers),
    )
    for order, neighbours in passes:
        for index in order:
            if origins[index] is None:
                are_readers = neighbours is readers
                origins[index] = _origin_of_neighbour(entries[index], neighbours, origins, are_readers=are_readers)
    return origins


def _origin_of_neighbour(
    entry: Mapping[str, Any],
    neighbours: Mapping[str, Sequence[int]],
    origins: Sequence[_Origin | None],
    *,
    are_readers: bool,
) -> _Origin | None:
    """The origin of the first neighbour that has an origin, or None.

    `neighbours` maps the name of a tensor to layers: with `are_readers` to those that read the tensor, and otherwise to
    those that write the tensor."""
    tensors = [output["name"] for output in entry["outputs"]] if are_readers else entry["inputs"]
    candidates = (origins[index] for tensor in tensors for index in neighbours.get(tensor, ()))
    return next((origin for origin in candidates if origin is not None), None)
