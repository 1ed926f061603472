"""A TensorRT network as a document: recorded calls that any toolchain can repeat to define the same network.

The document is canonical JSON (`to_bytes`). The key of its engine has the digest of these bytes in place of the digest of
an ONNX model.

Rules
1. ``inputs`` are in the manifest's order. Each has a dtype (``FLOAT``, TensorRT's name) and a shape. A size is a number, or
   ``"d<k>"`` for a dynamic size, which several axes may share.
2. ``calls`` are in order. Each is a call on the network (``on`` is null), or on an object that an earlier call created
   (``on`` is its number; objects are numbered in the order of creation). An entry has ``call`` with ``args`` and
   ``kwargs``, or ``set`` with a ``value``; the attributes of a tensor are set with ``tensor`` in place of ``on``.
   ``makes`` is the kind of the created object: ``layer`` or ``scope`` (a loop, a condition). Other calls have no ``makes``.
3. A value is a number, text, bool, null or list. A float is ``{"float": <hex>}``. A member of an enumeration is
   ``{"enum": [type, name]}``. A permutation is ``{"permutation": [...]}``. Tensors are named by position, as
   ``{"input": k}`` or ``{"output": [object, k]}``, and other objects as ``{"object": number}``. Weights are named by slot
   (their index in ``weights``), as ``{"weights": k}``, or are ``{"no_weights": dtype}``.
4. The document has no names of tensors or layers, because such names are labels, and belong to the package.
"""

from __future__ import annotations

import json
from typing import Any

SCHEMA = "trtbuild.network/1"

_FIRST_BYTES = f'{{"schema":"{SCHEMA}",'.encode()
_FIRST_BYTES_OF_ANY_VERSION = b'{"schema":"trtbuild.network/'


class NotRecorded(Exception):
    """A call on a network cannot be recorded and repeated, or TensorRT refuses the call."""


def to_bytes(inputs: list[Any], weights: list[Any], calls: list[Any], outputs: list[Any]) -> bytes:
    """The document as bytes. `weights` are (dtype, count) by slot; `outputs` are the output tensors in order."""
    document = {"schema": SCHEMA, "inputs": inputs, "weights": weights, "calls": calls, "outputs": outputs}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def is_document(data: bytes | bytearray | memoryview) -> bool:
    """Whether `data` begins like a network document of any version. No ONNX model begins with these bytes."""
    return bytes(data[: len(_FIRST_BYTES_OF_ANY_VERSION)]) == _FIRST_BYTES_OF_ANY_VERSION


def parse(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The document as values. Raises ValueError if it has another version."""
    if bytes(data[: len(_FIRST_BYTES)]) != _FIRST_BYTES:
        raise ValueError(f"not a {SCHEMA} document")
    document: dict[str, Any] = json.loads(bytes(data))
    return document
