"""Read weights files in the safetensors format without torch. PyTorch checkpoints are refused.

The *table* of a file maps the name of each tensor to its dtype, shape and digest. The digest is the SHA-256 of the tensor's
bytes in the file, little-endian and row-major (`trtbuild.core.values.safetensors`).

Rules
1. The table is made while the whole file is read and hashed. So it describes exactly the bytes that have the file's digest,
   even if the file changes meanwhile. If `sha256` hashes a large file, it also makes the table.
2. A tensor is put into the store when an engine or a package needs it. Its bytes are read and hashed again, and the digest
   has to match the table.
3. The file is not memory-mapped, so a truncation during the reading is an error, and not a SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from trtbuild.core.engines.binding import weights_from_json, weights_to_json
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.safetensors import LENGTH_BYTES, TensorEntry, header_length, read_entries
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted, SourceError, StoreUnavailable
from trtbuild.regular import open_regular
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.reading import Consumer, read_through

#: The first bytes of PyTorch checkpoints.
_CHECKPOINT_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

_WRITE_HINT = "write weights with safetensors.torch.save_file(module.state_dict(), path)"


class WeightsFile:
    """A weights file. `name` is its path relative to the project."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        #: The table that `sha256` has made while it computed the digest.
        self._hashed_table: _TableBuilder | None = None

    def sha256(self, digests: FileDigests) -> str | None:
        """The file's digest, or None if the file does not exist. Raises OSError if it cannot be read."""
        table: _TableBuilder | None = None

        def begin_table(descriptor: int) -> Consumer:
            nonlocal table
            with contextlib.suppress(SourceError):  # if the table is needed, the method `table` raises this error later
                table = self._begin_table(descriptor)
                return table.update
            return _ignore_bytes

        digest, consumer = digests.sha256_with_consumer(self.path, begin_table)
        self._hashed_table = table if table is not None and consumer == table.update else None
        return digest

    def table(self, sha256: str, store: Store) -> dict[str, Weight]:
        """The table of the file with the digest `sha256`. It is stored as a record, which later commands read, if the store
        can be written.

        Raises SourceError if the file is not a safetensors file, or changes while it is read.
        """
        recipe = keys.weights_file(sha256)
        invalid = (KeyError, TypeError, ValueError, RecursionError)
        with contextlib.suppress(EntryCorrupt, BlobMissing, RecordUntrusted, *invalid):
            record = store.get_record(recipe.key)
            if record is not None and record.recipe.same_as(recipe):
                return weights_from_json(json.loads(store.get_bytes(record.outputs["table"].sha256)))
        hashed = self._hashed_table.weights() if self._hashed_table is not None else None
        table = self._read_table(sha256) if hashed is None else hashed
        with contextlib.suppress(StoreUnavailable):  # only steps need a store that can be written
            output = store.put_bytes(json.dumps(weights_to_json(table)).encode())
            store.put_record(Record(recipe, {"table": output}), replace=True)
        return table

    def put_tensors(self, table: Mapping[str, Weight], digests: Sequence[str], store: Store) -> None:
        """Put the tensors of `table` with these digests into the store.

        Raises SourceError if the file no longer matches the table, and StoreUnavailable.
        """
        missing_digests = set(digests)
        with self._open_file() as descriptor:
            start, tensors = self._tensors(descriptor)
            for tensor in tensors:
                known = table.get(tensor.name)
                if known is None or known.sha256 not in missing_digests:
                    continue
                data = _read_exactly(descriptor, start + tensor.begin, tensor.end - tensor.begin)
                if data is None or store.put_bytes(data).sha256 != known.sha256:
                    raise self._changed_error()
                missing_digests.remove(known.sha256)
        if missing_digests:
            raise self._changed_error()

    def _read_table(self, sha256: str) -> dict[str, Weight]:
        with self._open_file() as descriptor:
            file_hash, table = hashlib.sha256(), self._begin_table(descriptor)
            read_through(descriptor, file_hash.update, table.update)
        weights = table.weights()
        if file_hash.hexdigest() != sha256 or weights is None:
            raise self._changed_error()
        return weights

    def _begin_table(self, descriptor: int) -> _TableBuilder:
        start, tensors = self._tensors(descriptor)
        return _TableBuilder(os.pread(descriptor, start, 0), tensors)

    @contextlib.contextmanager
    def _open_file(self) -> Iterator[int]:
        try:
            descriptor = open_regular(self.path)
        except OSError as error:
            raise SourceError(f"it cannot be read: {error.strerror}", code="weights-file", file=self.name) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _tensors(self, descriptor: int) -> tuple[int, list[TensorEntry]]:
        """The offset of the data in bytes, and the tensors in the order of the data."""
        size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, LENGTH_BYTES, 0)
        try:
            length = header_length(head, size)
        except ValueError as error:
            raise self._format_error(_format_fault(head, size) or str(error)) from None
        header = _read_exactly(descriptor, LENGTH_BYTES, length)
        try:
            return LENGTH_BYTES + length, read_entries(bytes(header or b""), size)
        except ValueError as error:
            raise self._format_error(str(error)) from None

    def _format_error(self, why: str) -> SourceError:
        hint = _WRITE_HINT
        if why == _CHECKPOINT_FAULT:
            target = PurePath(self.name).with_suffix(".safetensors")
            load = f"torch.load('{self.name}', map_location='cpu', weights_only=True)"
            save = f"import torch, safetensors.torch as s; s.save_file({load}, '{target}')"
            hint = f'convert it once, and name {target} in `weights:`: python -c "{save}"'
        return SourceError(f"not a safetensors file: {why}", code="weights-file", file=self.name, hint=hint)

    def _changed_error(self) -> SourceError:
        return SourceError(
            "the weights file changed while it was used",
            code="unstable-file",
            file=self.name,
            hint="wait for the program that writes it, then build again",
        )


_CHECKPOINT_FAULT = "it is a PyTorch checkpoint (torch.save), and only safetensors files are read"


def _format_fault(head: bytes, size: int) -> str | None:
    if size == 0:
        return "it is empty"
    return _CHECKPOINT_FAULT if head.startswith(_CHECKPOINT_STARTS) else None


class _TableBuilder:
    """Builds the table from the bytes of the file. `expected_header` is the header, with its length before it."""

    def __init__(self, expected_header: bytes, tensors: Sequence[TensorEntry]) -> None:
        self._expected_header = expected_header
        self._header = bytearray()
        self._tensors = tensors
        self._digests = [hashlib.sha256() for _ in tensors]
        self._missing_bytes = [tensor.end - tensor.begin for tensor in tensors]
        #: The number of the tensor to which the next bytes belong.
        self._current = 0

    def update(self, view: memoryview) -> None:
        """Take the next bytes of the file."""
        missing_header_bytes = len(self._expected_header) - len(self._header)
        self._header += view[:missing_header_bytes]
        view = view[missing_header_bytes:]
        while view and self._current < len(self._missing_bytes):
            piece = view[: self._missing_bytes[self._current]]
            self._digests[self._current].update(piece)
            self._missing_bytes[self._current] -= len(piece)
            if not self._missing_bytes[self._current]:
                self._current += 1
            view = view[len(piece) :]

    def weights(self) -> dict[str, Weight] | None:
        """The table, or None if the bytes do not match the header."""
        if self._header != self._expected_header or any(self._missing_bytes):
            return None
        return {
            tensor.name: Weight(tensor.dtype, tensor.shape, digest.hexdigest())
            for tensor, digest in zip(self._tensors, self._digests, strict=True)
        }


def _ignore_bytes(view: memoryview) -> None:
    """The consumer of a file that is not a safetensors file."""


def _read_exactly(descriptor: int, start: int, size: int) -> memoryview | None:
    """The `size` bytes of a file from the offset `start`, or None if the file is shorter."""
    data, filled = memoryview(bytearray(size)), 0
    while filled < size:
        count = os.preadv(descriptor, [data[filled:]], start + filled)
        if not count:
            return None
        filled += count
    return data
