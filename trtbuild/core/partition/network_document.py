"""A TensorRT network as a document: what a function did to define it, so that any toolchain can do it again.

The document is canonical JSON (`to_bytes`); its bytes are what an engine's key names where other models have ONNX.

Rules
1. ``inputs`` are in the manifest's order: a dtype (``FLOAT``, TensorRT's name) and a shape. A size is a number, or the name
   ``"d<k>"`` of a dynamic one, which several axes may share.
2. ``calls`` stand in order. Each is on the network (``on`` is null) or on the object that an earlier call made (its number
   among those that made one): ``call`` with ``args`` and ``kwargs``, or ``set`` with a ``value``. ``makes`` says what the
   call gives: ``layer``, ``scope`` (a loop, a condition), or null.
3. A value is a number, text, bool, null or list; a float is ``{"float": <hex>}``, an enumeration's member
   ``{"enum": [type, name]}``, a permutation ``{"permutation": [...]}``. Tensors go by position: ``{"input": k}``,
   ``{"output": [object, k]}``; other objects are ``{"object": number}``. Weights go by slot: ``{"weights": k}``, or
   ``{"no_weights": dtype}``.
4. No names: they are labels, and belong to the package.
"""

from __future__ import annotations

import json
from typing import Any

SCHEMA = "trtbuild.network/1"

_HEAD = f'{{"schema":"{SCHEMA}",'.encode()
_ANY_VERSION = b'{"schema":"trtbuild.network/'


class NotRecorded(Exception):
    """A function does something to a network that cannot be done again elsewhere, or that TensorRT refuses."""


def to_bytes(inputs: list[Any], weights: list[Any], calls: list[Any], outputs: list[Any]) -> bytes:
    """The document. `weights` are (dtype, count) by slot, `outputs` tensors in order."""
    document = {"schema": SCHEMA, "inputs": inputs, "weights": weights, "calls": calls, "outputs": outputs}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def is_document(data: bytes | bytearray | memoryview) -> bool:
    """Whether `data` is such a document (of any version), and not an ONNX model: none begins like this."""
    return bytes(data[: len(_ANY_VERSION)]) == _ANY_VERSION


def parse(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The document as values. Raises ValueError for one of another version."""
    if bytes(data[: len(_HEAD)]) != _HEAD:
        raise ValueError(f"not a {SCHEMA} document")
    found: dict[str, Any] = json.loads(bytes(data))
    return found
