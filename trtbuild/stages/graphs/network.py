"""A recorded TensorRT network between the steps: its blob, and its graph text.

The blob is JSON: the network's document (`trtbuild.core.partition.network_document`), the name and type of each layer,
the types of inputs and outputs, and the number of weights. The graph text does not depend on the layers' names.
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
    """Return the blob of a network. `layers`: (name in the user's network, type). `weights` is the number of weights."""
    types = [[[type_.dtype, type_.shape] for type_ in each] for each in (inputs, outputs)]
    content = {"document": document.decode(), "layers": [list(layer) for layer in layers], "types": [*types, weights]}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def graph_text(data: bytes) -> str:
    """The graph text of a blob: the schema's name, and the digest of the document, the types and the number of weights."""
    content = json.loads(data)
    text = json.dumps([content["document"], content["types"]], separators=(",", ":"))
    return f"{network_document.SCHEMA} {hashlib.sha256(text.encode()).hexdigest()}\n"


def layer_names(data: bytes) -> list[tuple[str, str, str]]:
    """(name in the user's network, type, "") of each layer. The empty text takes the place of a module path."""
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
    """(name in an engine, index) of each layer of the document `model`."""
    calls: list[dict[str, Any]] = network_document.parse(model)["calls"]
    count = sum(call.get("makes") == "layer" for call in calls)
    return [(f"n{number}", number) for number in range(count)]
