"""A TensorRT network as a JSON document: recorded calls that any toolchain can repeat to define the same network.

The engine's key has the digest of the document in place of the digest of an ONNX model.

Rules
1. ``inputs`` are in the manifest's order. Each has a dtype (``FLOAT``, TensorRT's name) and a shape. A size is a number, or
   ``"d<k>"`` for a dynamic size. Several axes may share a dynamic size.
2. ``calls`` are in the order in which they were made. The objects that calls create are numbered in the order of creation.

   * ``on``: the number of the object that is called or changed, or null for the network. If an attribute of a tensor is
     set, the entry has ``tensor`` (the tensor) in place of ``on``.
   * ``call``: the method, with ``args`` and ``kwargs``; or ``set``: the attribute, with ``value``.
   * ``makes``: the kind of the created object, ``layer`` or ``scope`` (a loop, a condition). Other calls have no
     ``makes``.
3. A value is an integer, text, bool, null or list, or an object with one member:

   * ``{"float": <hex>}``, ``{"enum": [type, name]}`` or ``{"permutation": [...]}``
   * a tensor: ``{"input": k}`` (input k of the network) or ``{"output": [object, k]}`` (output k of an object)
   * another object: ``{"object": number}``
   * weights: ``{"weights": k}`` (entry k of the document's ``weights``), or ``{"no_weights": dtype}`` for empty weights
4. The document has no names of tensors and layers, because such names are only labels. The package has the names of
   inputs, outputs and layers.
"""

from __future__ import annotations

import json
from typing import Any

SCHEMA = "trtbuild.network/1"

_FIRST_BYTES = f'{{"schema":"{SCHEMA}",'.encode()
_FIRST_BYTES_OF_ANY_VERSION = b'{"schema":"trtbuild.network/'


class NotRecorded(Exception):
    """A call on a network cannot be recorded or repeated, or TensorRT refuses it."""


def to_bytes(inputs: list[Any], weights: list[Any], calls: list[Any], outputs: list[Any]) -> bytes:
    """The document as bytes. `weights` has a dtype and a count for each entry. `outputs` are tensors in order."""
    document = {"schema": SCHEMA, "inputs": inputs, "weights": weights, "calls": calls, "outputs": outputs}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def is_document(data: bytes | bytearray | memoryview) -> bool:
    """Whether `data` begins like a network document of any version. An ONNX model never does."""
    return bytes(data[: len(_FIRST_BYTES_OF_ANY_VERSION)]) == _FIRST_BYTES_OF_ANY_VERSION


def parse(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The document as values. Raises ValueError if it has another version."""
    if bytes(data[: len(_FIRST_BYTES)]) != _FIRST_BYTES:
        raise ValueError(f"not a {SCHEMA} document")
    document: dict[str, Any] = json.loads(bytes(data))
    return document
