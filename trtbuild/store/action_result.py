"""The JSON form of Bazel's `ActionResult`, which is what an entry under ``ac/`` is.

Source: build/bazel/remote/execution/v2/remote_execution.proto and protobuf's JSON mapping: lowerCamelCase names, an
int64 as a decimal string, a field with its default value may be left out. bazel-remote validates that every output
file of an entry is in its CAS, and collects what no entry names. Hence:

1. A record's entry names the record document (path ``record.json``) and every CAS file that its outputs consist of.
2. The path of a CAS file says what it is a part of: ``blob/<sha256>`` is a whole blob, ``blob/<sha256>/<number>`` the
   numbered chunk of one. So a record's entry alone is enough to put its blobs together.
3. The list of a chunked blob is an entry of its own, under `list_key` of the blob, in the same form.
4. Paths that are neither are kept and protected, and otherwise ignored: later versions may add some.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.encoding import digest
from trtbuild.core.record import Output, is_digest

#: Path of the record document among a record entry's output files.
DOCUMENT = "record.json"

_BLOB = "blob/"


def list_key(sha256: str) -> str:
    """The AC key under which the chunk list of blob `sha256` stands."""
    return digest("trtbuild.chunks/1", sha256)


@dataclass(frozen=True)
class ActionResult:
    """The output files of an entry: path and CAS file, in order."""

    files: tuple[tuple[str, Output], ...]

    def to_bytes(self) -> bytes:
        """The entry as JSON, UTF-8."""
        listed = [
            {"path": path, "digest": {"hash": file.sha256, "sizeBytes": str(file.size)}} for path, file in self.files
        ]
        return json.dumps({"outputFiles": listed}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ActionResult:
        """Raises ValueError when `data` is not the JSON form of an ActionResult of a finished action."""
        return cls(tuple(_file(entry) for entry in _output_files(data)))

    @property
    def document(self) -> Output | None:
        """The record document, when this is a record's entry."""
        return next((file for path, file in self.files if path == DOCUMENT), None)

    def blobs(self) -> dict[str, tuple[Output, ...]]:
        """The CAS files of every blob that is named, in order. Raises ValueError when chunks are out of order."""
        found: dict[str, list[Output]] = {}
        for path, file in self.files:
            if not path.startswith(_BLOB):
                continue
            sha256, slash, number = path[len(_BLOB) :].partition("/")
            parts = found.setdefault(sha256, [])
            expected = number == str(len(parts)) if slash else not parts and sha256 == file.sha256
            if not is_digest(sha256) or not expected:
                raise ValueError(f"no part of a blob: {path}")
            parts.append(file)
        return {sha256: tuple(parts) for sha256, parts in found.items()}


def record_document(data: bytes) -> Output:
    """The document of the record that `data` is the entry of; its other files are not looked at. Raises ValueError."""
    for entry in _output_files(data):
        if isinstance(entry, dict) and entry.get("path") == DOCUMENT:
            return _file(entry)[1]
    raise ValueError("it names no record document")


def _output_files(data: bytes) -> list[object]:
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or not isinstance(document.get("outputFiles"), list):
        raise ValueError("an action result has output files")
    if document.get("exitCode", 0) != 0:
        raise ValueError("the action failed")
    return list(document["outputFiles"])


def _file(entry: object) -> tuple[str, Output]:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise ValueError("an output file has a path")
    named = entry.get("digest")
    if not isinstance(named, dict) or not is_digest(named.get("hash")):
        raise ValueError("an output file has a digest")
    size = named.get("sizeBytes", "0")
    if isinstance(size, str) and size.isascii() and size.isdigit():
        size = int(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("a digest has a size")
    return entry["path"], Output(named["hash"], size)


def record_entry(document: Output, blobs: Mapping[str, Sequence[Output]]) -> ActionResult:
    """The entry of a record: its document, and the CAS files of each blob that its outputs name."""
    files = [(DOCUMENT, document)]
    for sha256, parts in blobs.items():
        files += _paths(sha256, parts)
    return ActionResult(tuple(files))


def list_entry(sha256: str, chunks: Sequence[Output]) -> ActionResult:
    """The chunk list of blob `sha256`."""
    return ActionResult(tuple(_paths(sha256, chunks)))


def listed_chunks(data: bytes, sha256: str) -> tuple[Output, ...]:
    """The chunks in `data`, the list of blob `sha256`. Raises ValueError when it is no list of that blob."""
    blobs = ActionResult.from_bytes(data).blobs()
    if list(blobs) != [sha256] or len(blobs[sha256]) < 2:
        raise ValueError(f"not the chunk list of {sha256}")
    return blobs[sha256]


def _paths(sha256: str, parts: Sequence[Output]) -> Iterable[tuple[str, Output]]:
    if len(parts) == 1 and parts[0].sha256 == sha256:
        return [(f"{_BLOB}{sha256}", parts[0])]
    return [(f"{_BLOB}{sha256}/{number}", part) for number, part in enumerate(parts)]
