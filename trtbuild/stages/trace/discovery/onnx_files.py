"""Find the files with the external data of an ONNX model.

Libraries in C++ open these files without an audit event. The names are searched in the bytes of the model, because a large
model without external data would take long to parse.
"""

from __future__ import annotations

import mmap
import os
import re
from typing import Any

#: An entry of ``TensorProto.external_data`` with the key ``location``, up to the length of its value.
_LOCATION = re.compile(rb"\x0a\x08location\x12(.)", re.DOTALL)


def external_files(path: Any) -> list[str]:
    """The paths of the files with external data, in the order of the model; empty if the model cannot be read."""
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names = [content[found.end() : found.end() + found[1][0]] for found in _LOCATION.finditer(content)]
    except (OSError, ValueError):
        return []
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
    return [os.path.join(folder, os.fsdecode(name)) for name in dict.fromkeys(names)]
