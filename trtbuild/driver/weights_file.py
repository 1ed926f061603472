"""Weights files: names, dtypes, shapes and digests of the tensors of a safetensors file, without torch.

The format (https://github.com/huggingface/safetensors, "Format"): eight bytes, little-endian, the header's length N;
N bytes of JSON, name → dtype, shape, data_offsets; then the data. Tensors are little-endian and row-major, so their
bytes are what a weight's digest covers.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.core import keys
from trtbuild.core.binding import weights_from_json, weights_to_json
from trtbuild.core.engine_job import Weight
from trtbuild.core.ports import Store
from trtbuild.core.record import Output, Record
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError

_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
}

#: A header larger than this is refused (the format's own limit, in bytes).
_MAX_HEADER = 100_000_000


def weights_table(path: Path, sha256: str, store: Store) -> dict[str, Weight]:
    """The tensors of the file with this digest, by name; each one's bytes are a blob of the store afterwards.

    The second time, only the record is read; one that is damaged or incomplete is made again from the file. Raises
    SourceError when the file is no safetensors file.
    """
    recipe = keys.weights_file(sha256, "safetensors")
    with contextlib.suppress(EntryCorrupt, BlobMissing, KeyError, TypeError, ValueError):
        record = store.get_record(recipe.key)
        if record is not None and record.recipe.same_as(recipe):
            return weights_from_json(json.loads(store.get_bytes(record.outputs["table"].sha256)))
    return keep_weights(path, sha256, store)


def keep_weights(path: Path, sha256: str, store: Store) -> dict[str, Weight]:
    """Put every tensor of the file into the store, and the record of the table."""
    table: dict[str, Weight] = {}
    outputs: dict[str, Output] = {}
    if path.stat().st_size == 0:
        raise _bad(path, "it is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start, header = _header(path, data)
        view = memoryview(data)
        try:
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                dtype, shape, (first, last) = _entry(path, name, entry, len(data) - start)
                with view[start + first : start + last] as tensor:
                    output = store.put_bytes(tensor)
                table[name] = Weight(dtype, shape, output.sha256)
                outputs[f"tensor:{name}"] = output
        finally:
            view.release()
    outputs["table"] = store.put_bytes(json.dumps(weights_to_json(table)).encode())
    store.put_record(Record(keys.weights_file(sha256, "safetensors"), outputs), replace=True)
    return table


def _header(path: Path, data: mmap.mmap) -> tuple[int, Mapping[str, Any]]:
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else 0
    if not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
        raise _bad(path, "its header's length is wrong")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as error:
        raise _bad(path, f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is not an object")
    return 8 + length, header


def _entry(path: Path, name: str, entry: Any, size: int) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    try:
        dtype, width = _DTYPES[entry["dtype"]]
        shape = tuple(int(length) for length in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _bad(path, f"the entry of tensor {name!r} is not understood: {entry!r}") from None
    wanted = width
    for length in shape:
        wanted *= length
    if not 0 <= first <= last <= size or last - first != wanted:
        raise _bad(path, f"tensor {name!r} has {last - first} bytes where {dtype}{list(shape)} needs {wanted}")
    return dtype, shape, (first, last)


def _bad(path: Path, why: str) -> SourceError:
    return SourceError(
        f"not a safetensors file: {why}",
        code="weights-file",
        file=str(path),
        hint="write weights with safetensors.torch.save_file(module.state_dict(), path)",
    )
