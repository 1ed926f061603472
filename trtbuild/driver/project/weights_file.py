"""Weights files: the names, dtypes, shapes and digests of the tensors of a safetensors file, without torch.

Tensors are stored little-endian and row-major (`trtbuild.core.values.safetensors`). A weight's digest is the SHA-256 of
these bytes.

Rules
1. The table is made while the whole file is read and hashed. So the table belongs to the bytes with that digest, even if
   the file changes meanwhile. Usually the file's digest is computed for the first time during the same read.
2. A tensor is put into the store when an engine or a package needs it. It is stored under the digest of the bytes that are
   read then, and that digest has to match the table.
3. The file is not memory-mapped. If the file is truncated meanwhile, the result is an error, and not a SIGBUS.
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
from trtbuild.core.values.safetensors import LENGTH_BYTES, Entry, entries, header_length
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError
from trtbuild.regular import open_regular
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.reading import Consumer, read_through

#: The first bytes of PyTorch checkpoints.
_CHECKPOINTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

_WRITE_IT = "write weights with safetensors.torch.save_file(module.state_dict(), path)"


class WeightsFile:
    """A weights file: its name relative to the project, and its path."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._hashed_table: _TableBuilder | None = None

    def sha256(self, digests: FileDigests) -> str | None:
        """The file's digest, or None if the file does not exist. Raises OSError if it cannot be read."""
        table: _TableBuilder | None = None

        def begin(descriptor: int) -> Consumer:
            nonlocal table
            with contextlib.suppress(SourceError):  # `table` raises the error, if the table is needed
                table = self._begin(descriptor)
                return table.update
            return _ignore

        digest, consumer = digests.sha256_with_consumer(self.path, begin)
        self._hashed_table = table if table is not None and consumer == table.update else None
        return digest

    def table(self, sha256: str, store: Store) -> dict[str, Weight]:
        """The tensors by name. `sha256` is the file's digest. The table is stored as a record, and later read from there.

        Raises SourceError if the file is not a safetensors file, or changes meanwhile.
        """
        recipe = keys.weights_file(sha256, "safetensors")
        with contextlib.suppress(EntryCorrupt, BlobMissing, KeyError, TypeError, ValueError):
            record = store.get_record(recipe.key)
            if record is not None and record.recipe.same_as(recipe):
                return weights_from_json(json.loads(store.get_bytes(record.outputs["table"].sha256)))
        hashed = self._hashed_table.weights() if self._hashed_table is not None else None
        table = self._read(sha256) if hashed is None else hashed
        output = store.put_bytes(json.dumps(weights_to_json(table)).encode())
        store.put_record(Record(recipe, {"table": output}), replace=True)
        return table

    def keep(self, table: Mapping[str, Weight], digests: Sequence[str], store: Store) -> None:
        """Put the tensors of `table` with these digests into the store.

        Raises SourceError if the file does not match the table any more, and StoreUnavailable.
        """
        missing = set(digests)
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
            file_hash, table = hashlib.sha256(), self._begin(descriptor)
            read_through(descriptor, file_hash.update, table.update)
        weights = table.weights()
        if file_hash.hexdigest() != sha256 or weights is None:
            raise self._changed()
        return weights

    def _begin(self, descriptor: int) -> _TableBuilder:
        start, tensors = self._tensors(descriptor)
        return _TableBuilder(os.pread(descriptor, start, 0), tensors)

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

    def _tensors(self, descriptor: int) -> tuple[int, list[Entry]]:
        """The offset of the data in bytes, and the tensors in the order of their data."""
        size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, LENGTH_BYTES, 0)
        try:
            length = header_length(head, size)
        except ValueError as error:
            raise self._invalid(_other_format(head, size) or str(error)) from None
        header = _read_exactly(descriptor, LENGTH_BYTES, length)
        try:
            return LENGTH_BYTES + length, entries(bytes(header or b""), size)
        except ValueError as error:
            raise self._invalid(str(error)) from None

    def _invalid(self, why: str) -> SourceError:
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


def _other_format(head: bytes, size: int) -> str | None:
    if size == 0:
        return "it is empty"
    return _CHECKPOINT if head.startswith(_CHECKPOINTS) else None


class _TableBuilder:
    """Builds the table from the file's bytes, in their order: the header `head`, then the tensors. Hashes each tensor."""

    def __init__(self, head: bytes, tensors: Sequence[Entry]) -> None:
        self._head = head
        self._header = bytearray()
        self._tensors = tensors
        self._digests = [hashlib.sha256() for _ in tensors]
        self._missing_bytes = [tensor.last - tensor.first for tensor in tensors]
        self._current = 0

    def update(self, view: memoryview) -> None:
        missing_of_head = len(self._head) - len(self._header)
        self._header += view[:missing_of_head]
        view = view[missing_of_head:]
        while view and self._current < len(self._missing_bytes):
            piece = view[: self._missing_bytes[self._current]]
            self._digests[self._current].update(piece)
            self._missing_bytes[self._current] -= len(piece)
            self._current += self._missing_bytes[self._current] == 0
            view = view[len(piece) :]

    def weights(self) -> dict[str, Weight] | None:
        """The table, or None if the bytes do not match the header."""
        if self._header != self._head or any(self._missing_bytes):
            return None
        return {
            tensor.name: Weight(tensor.dtype, tensor.shape, digest.hexdigest())
            for tensor, digest in zip(self._tensors, self._digests, strict=True)
        }


def _ignore(view: memoryview) -> None:
    """Ignore the bytes of a file that is not a safetensors file."""


def _read_exactly(descriptor: int, start: int, size: int) -> memoryview | None:
    """`size` bytes of a file from offset `start` on, or None if the file ends before."""
    data, filled = memoryview(bytearray(size)), 0
    while filled < size:
        count = os.preadv(descriptor, [data[filled:]], start + filled)
        if not count:
            return None
        filled += count
    return data
