"""A recorded TensorRT network, as a step passes it to the next steps: its blob, and its graph text.

The blob is JSON: the network's document (`trtbuild.core.partition.network_document`), the type of each layer and its
name in the user's network, the types of inputs and outputs, and the number of weights. The keys of later steps do not
contain the layers' names.
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
    """Return the blob of a network. `layers` are (name in the user's network, type). `weights` is the number of weights."""
    types = [[[type_.dtype, type_.shape] for type_ in each] for each in (inputs, outputs)]
    content = {"document": document.decode(), "layers": [list(layer) for layer in layers], "types": [*types, weights]}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def graph_text(data: bytes) -> str:
    """The graph text of a blob, for keys: the schema's name, and a digest of `document` and `types`."""
    content = json.loads(data)
    text = json.dumps([content["document"], content["types"]], separators=(",", ":"))
    return f"{network_document.SCHEMA} {hashlib.sha256(text.encode()).hexdigest()}\n"


def layer_names(data: bytes) -> list[tuple[str, str, str]]:
    """For each layer: its name in the user's network, its type, and "", because a layer has no modules around it."""
    return [(name, kind, "") for name, kind in json.loads(data)["layers"]]


def document(data: bytes) -> bytes:
    """The network's document."""
    text: str = json.loads(data)["document"]
    return text.encode()


def types(data: bytes) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...], int]:
    """The types of the inputs and outputs, in order, and the number of weights."""
    inputs, outputs, weights = json.loads(data)["types"]
    input_types, output_types = (tuple(TensorType(d, tuple(shape)) for d, shape in each) for each in (inputs, outputs))
    return input_types, output_types, int(weights)


def origins(model: bytes) -> list[tuple[str, int]]:
    """For each layer of the document `model`: its name in an engine, and its index."""
    calls: list[dict[str, Any]] = network_document.parse(model)["calls"]
    count = sum(call.get("makes") == "layer" for call in calls)
    return [(f"n{number}", number) for number in range(count)]
