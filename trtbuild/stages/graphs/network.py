"""A recorded TensorRT network between the steps: its blob, and what of it is its graph.

The blob is JSON: the network's document (`trtbuild.core.partition.network_document`), (name, type) of its layers as the
user calls them, and its types. Layers' names are in no later key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from trtbuild.core.partition import network_document
from trtbuild.core.partition.partitions import TensorType


def blob(
    document: bytes,
    layers: Sequence[tuple[str, str]],
    weights: int,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
) -> bytes:
    """The blob of a network with `weights` weights."""
    types = [[[type_.dtype, type_.shape] for type_ in each] for each in (inputs, outputs)]
    made = {"document": document.decode(), "layers": [list(layer) for layer in layers], "types": [*types, weights]}
    return json.dumps(made, sort_keys=True, separators=(",", ":")).encode()


def graph_text(data: bytes) -> str:
    """What stands for a blob's graph in keys: all but the names."""
    made = json.loads(data)
    text = json.dumps([made["document"], made["types"]], separators=(",", ":"))
    return f"{network_document.SCHEMA} {hashlib.sha256(text.encode()).hexdigest()}\n"


def layer_names(data: bytes) -> list[tuple[str, str, str]]:
    """For each layer: the user's name of it, and its type."""
    return [(name, kind, "") for name, kind in json.loads(data)["layers"]]


def document(data: bytes) -> bytes:
    """The network's document."""
    found: str = json.loads(data)["document"]
    return found.encode()


def types(data: bytes) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...], int]:
    """The types of the inputs and outputs, in order, and how many weights there are."""
    inputs, outputs, weights = json.loads(data)["types"]
    first, second = (tuple(TensorType(d, tuple(shape)) for d, shape in each) for each in (inputs, outputs))
    return first, second, int(weights)


def origins(model: bytes) -> list[tuple[str, int]]:
    """The names that a document's layers have in an engine, and their numbers."""
    calls: list[dict[str, Any]] = network_document.parse(model)["calls"]
    count = sum(call.get("makes") == "layer" for call in calls)
    return [(f"n{number}", number) for number in range(count)]
