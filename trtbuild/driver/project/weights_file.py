"""Weights files: names, dtypes, shapes and digests of the tensors of a safetensors file, without torch.

The format (https://github.com/huggingface/safetensors, "Format"): eight bytes, little-endian, the header's length N;
N bytes of JSON, name → dtype, shape, data_offsets; then the data. Tensors are little-endian and row-major, so their
bytes are what a weight's digest covers.

Rules
1. The table is made in a reading of the file that also hashes it as a whole: so it is the table of those bytes that its
   key names, whatever happens to the file meanwhile. It is the reading that finds the file's digest, where there is one.
2. The store gets the tensors that an engine or a package needs, when it needs them. What comes from the file by then is
   put under its own digest, and has to be the table's.
3. Nothing is mapped: a file that is truncated meanwhile is an error, and would be a SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from trtbuild.core.engines.binding import weights_from_json, weights_to_json
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError
from trtbuild.regular import open_regular
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.reading import Consumer, read_through

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


#: What other formats begin with.
_CHECKPOINTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

_WRITE_IT = "write weights with safetensors.torch.save_file(module.state_dict(), path)"


class WeightsFile:
    """A weights file: its name as a person knows it (relative to the project), and where it is."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._beside: _Table | None = None

    def sha256(self, digests: FileDigests) -> str | None:
        """The file's digest, or None when there is no such file. Raises OSError when it cannot be read."""
        table: _Table | None = None

        def begin(descriptor: int) -> Consumer:
            nonlocal table
            with contextlib.suppress(SourceError):  # `table` says so, where it has to be read
                table = self._begin(descriptor)
                return table.update
            return _ignore

        digest, consumer = digests.sha256_beside(self.path, begin)
        self._beside = table if table is not None and consumer == table.update else None
        return digest

    def table(self, sha256: str, store: Store) -> dict[str, Weight]:
        """The tensors by name; `sha256` is the file's. The second time, only the store's record of it is read.

        Raises SourceError when it is no safetensors file, or changes meanwhile.
        """
        recipe = keys.weights_file(sha256, "safetensors")
        with contextlib.suppress(EntryCorrupt, BlobMissing, KeyError, TypeError, ValueError):
            record = store.get_record(recipe.key)
            if record is not None and record.recipe.same_as(recipe):
                return weights_from_json(json.loads(store.get_bytes(record.outputs["table"].sha256)))
        found = self._beside.weights() if self._beside is not None else None
        table = self._read(sha256) if found is None else found
        output = store.put_bytes(json.dumps(weights_to_json(table)).encode())
        store.put_record(Record(recipe, {"table": output}), replace=True)
        return table

    def keep(self, table: Mapping[str, Weight], wanted: Sequence[str], store: Store) -> None:
        """Put tensors into the store: those that have the digests `wanted` in the `table`.

        Raises SourceError when the file is not the table's any more, StoreUnavailable.
        """
        missing = set(wanted)
        with self._open() as descriptor:
            start, tensors = self._tensors(descriptor)
            for tensor in tensors:
                known = table.get(tensor.name)
                if known is None or known.sha256 not in missing:
                    continue
                data = _read_exactly(descriptor, start + tensor.first, tensor.last - tensor.first)
                if data is None or store.put_bytes(data).sha256 != known.sha256:
                    raise self._changed()
                missing.remove(known.sha256)
        if missing:
            raise self._changed()

    def _read(self, sha256: str) -> dict[str, Weight]:
        """The table, read from the file (rule 1)."""
        with self._open() as descriptor:
            whole, table = hashlib.sha256(), self._begin(descriptor)
            read_through(descriptor, whole.update, table.update)
        weights = table.weights()
        if whole.hexdigest() != sha256 or weights is None:
            raise self._changed()
        return weights

    def _begin(self, descriptor: int) -> _Table:
        start, tensors = self._tensors(descriptor)
        return _Table(os.pread(descriptor, start, 0), tensors)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        try:
            descriptor = open_regular(self.path)
        except OSError as error:
            raise SourceError(f"it cannot be read: {error.strerror}", code="weights-file", file=self.name) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _tensors(self, descriptor: int) -> tuple[int, list[_Tensor]]:
        """Where the data begins, and the tensors in the order of their data."""
        size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, 8, 0)
        length = int.from_bytes(head, "little") if len(head) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise self._bad(_what_is_wrong(head, size))
        text = _read_exactly(descriptor, 8, length)
        try:
            header = json.loads(bytes(text or b""))
        except (ValueError, RecursionError) as error:
            raise self._bad(f"its header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise self._bad("its header is not an object")
        start = 8 + length
        found = [self._tensor(name, entry) for name, entry in header.items() if name != "__metadata__"]
        found.sort(key=lambda tensor: (tensor.first, tensor.last))
        end = 0
        for tensor in found:
            if tensor.first != end:
                raise self._bad(f"tensor {tensor.name!r} begins at byte {tensor.first} of the data, not at {end}")
            end = tensor.last
        if start + end != size:
            raise self._bad(f"its tensors need {start + end} bytes, and it has {size}: it was cut off or added to")
        return start, found

    def _tensor(self, name: str, entry: Any) -> _Tensor:
        try:
            dtype, width = _DTYPES[entry["dtype"]]
            shape = tuple(int(length) for length in entry["shape"])
            first, last = (int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise self._bad(f"the entry of tensor {name!r} is not understood: {entry!r}") from None
        wanted = width
        for length in shape:
            wanted *= length
        if min(shape, default=0) < 0 or not 0 <= first <= last or last - first != wanted:
            raise self._bad(f"tensor {name!r} has {last - first} bytes where {dtype}{list(shape)} needs {wanted}")
        return _Tensor(name, dtype, shape, first, last)

    def _bad(self, why: str) -> SourceError:
        hint = _WRITE_IT
        if why == _CHECKPOINT:
            target = PurePath(self.name).with_suffix(".safetensors")
            load = f"torch.load('{self.name}', map_location='cpu', weights_only=True)"
            save = f"import torch, safetensors.torch as s; s.save_file({load}, '{target}')"
            hint = f'convert it once, and name {target} in `weights:`: python -c "{save}"'
        return SourceError(f"not a safetensors file: {why}", code="weights-file", file=self.name, hint=hint)

    def _changed(self) -> SourceError:
        return SourceError(
            "the weights file changed while it was used",
            code="unstable-file",
            file=self.name,
            hint="wait for the program that writes it, then build again",
        )


_CHECKPOINT = "it is a PyTorch checkpoint (torch.save), and only safetensors files are read"


def _what_is_wrong(head: bytes, size: int) -> str:
    if size == 0:
        return "it is empty"
    if head.startswith(_CHECKPOINTS):
        return _CHECKPOINT
    return "its header's length is wrong"


@dataclass(frozen=True)
class _Tensor:
    """An entry of the header; `first` and `last` are bytes from the beginning of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


class _Table:
    """The table of a file whose bytes come in order: SHA-256 of each tensor, which follow the header `head`."""

    def __init__(self, head: bytes, tensors: Sequence[_Tensor]) -> None:
        self._head = head
        self._got = bytearray()
        self._tensors = tensors
        self._digests = [hashlib.sha256() for _ in tensors]
        self._left = [tensor.last - tensor.first for tensor in tensors]
        self._number = 0

    def update(self, view: memoryview) -> None:
        of_head = len(self._head) - len(self._got)
        self._got += view[:of_head]
        view = view[of_head:]
        while view and self._number < len(self._left):
            piece = view[: self._left[self._number]]
            self._digests[self._number].update(piece)
            self._left[self._number] -= len(piece)
            self._number += self._left[self._number] == 0
            view = view[len(piece) :]

    def weights(self) -> dict[str, Weight] | None:
        """The table, or None when the bytes that came are not those of that header."""
        if self._got != self._head or any(self._left):
            return None
        return {
            tensor.name: Weight(tensor.dtype, tensor.shape, digest.hexdigest())
            for tensor, digest in zip(self._tensors, self._digests, strict=True)
        }


def _ignore(view: memoryview) -> None:
    """Of a file that has no table."""


def _read_exactly(descriptor: int, start: int, size: int) -> memoryview | None:
    """Bytes of a file, or None when it ends before."""
    data, filled = memoryview(bytearray(size)), 0
    while filled < size:
        count = os.preadv(descriptor, [data[filled:]], start + filled)
        if not count:
            return None
        filled += count
    return data
