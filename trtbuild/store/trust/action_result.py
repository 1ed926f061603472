"""The JSON form of Bazel's `ActionResult`, which all entries under ``ac/`` have.

Sources: build/bazel/remote/execution/v2/remote_execution.proto, and protobuf's JSON mapping. Names are in lowerCamelCase,
an int64 is a decimal string, and a field with its default value may be left out. An output file of an entry is a file in
``cas/`` (CAS: content-addressable storage). bazel-remote checks that all output files of an entry exist, and may remove
files that no entry names. So these rules apply:

1. A record's entry names the record's document (path ``record.json``) and every CAS file of its outputs.
2. The path of a CAS file names its blob: ``blob/<sha256>`` is a complete blob, ``blob/<sha256>/<number>`` is a chunk of a
   blob. So a record's entry is enough to assemble its blobs.
3. The list of a blob's chunks is a separate entry of the same form. `list_key` is its key.
4. Files with other paths are ignored. A collection keeps them, because later versions may add such files.
5. The signatures of a record (core/recipes/trust.py) are in `stdoutRaw`, as base64 of a JSON list. Every server keeps this
   field. Other text in it is ignored, because other tools store their output there.
6. An entry may also contain the bytes of small files (`contents` of an output file), to save requests. They are verified
   like other files.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import Signature, is_domain
from trtbuild.core.values.encoding import digest, is_digest

#: The path of a record's document (rule 1).
DOCUMENT_PATH = "record.json"

#: If an entry has more signatures, all of them are ignored, because verifying costs time.
MAX_SIGNATURES = 16
# A signature with a longer text (name, domain, ...) is ignored.
_MAX_TEXT_LENGTH = 200

_BLOB_PREFIX = "blob/"
_BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/_-]*=*")


def list_key(sha256: str) -> str:
    """The key of the entry with the chunk list of blob `sha256` (rule 3)."""
    return digest("trtbuild.chunks/1", sha256)


@dataclass(frozen=True)
class ActionResult:
    """An entry: its output files in order, as pairs of path and CAS file, and the signatures of its record."""

    files: tuple[tuple[str, Output], ...]
    signatures: tuple[Signature, ...] = ()
    #: SHA-256 → the bytes of that file, not verified.
    contents: Mapping[str, bytes] = field(default_factory=dict, compare=False)

    def to_bytes(self) -> bytes:
        """The entry as JSON, UTF-8."""
        output_files: list[dict[str, object]] = [
            {"path": path, "digest": {"hash": file.sha256, "sizeBytes": str(file.size)}} for path, file in self.files
        ]
        for output_file, (_, file) in zip(output_files, self.files, strict=True):
            if file.sha256 in self.contents:
                output_file["contents"] = _encode_base64(self.contents[file.sha256])
        entry: dict[str, object] = {"outputFiles": output_files}
        if self.signatures:
            entry["stdoutRaw"] = _encode_base64(
                _encode_json([_signature_json(signature) for signature in self.signatures])
            )
        return _encode_json(entry)

    @classmethod
    def from_bytes(cls, data: bytes) -> ActionResult:
        """Parse the JSON form. Raises ValueError if it is not the ActionResult of a successful action."""
        document = _parse_document(data)
        files = tuple(_parse_file(output_file) for output_file in document["outputFiles"])
        return cls(files, _parse_signatures(document.get("stdoutRaw")), _valid_contents(document["outputFiles"], files))

    @property
    def document(self) -> Output | None:
        """The digest and size of the record's document, or None if this is not a record's entry."""
        return next((file for path, file in self.files if path == DOCUMENT_PATH), None)

    def blobs(self) -> dict[str, tuple[Output, ...]]:
        """SHA-256 of each blob → its CAS files, in order. Raises ValueError if chunks are out of order, or if a path under
        ``blob/`` is not a path of rule 2."""
        blobs: dict[str, list[Output]] = {}
        for path, file in self.files:
            if not path.startswith(_BLOB_PREFIX):
                continue
            sha256, slash, number = path[len(_BLOB_PREFIX) :].partition("/")
            files = blobs.setdefault(sha256, [])
            if slash:
                is_complete = bool(files) and files[0].sha256 == sha256
                is_next_part = not is_complete and number == str(len(files))  # chunks are numbered from 0
            else:
                is_next_part = not files and sha256 == file.sha256
            if not is_digest(sha256) or not is_next_part:
                raise ValueError(f"not a part of a blob: {path}")
            files.append(file)
        return {sha256: tuple(files) for sha256, files in blobs.items()}


def record_document(data: bytes) -> Output:
    """The digest and size of the document that the entry `data` names. Other files are not checked. Raises ValueError."""
    for output_file in _parse_document(data)["outputFiles"]:
        if isinstance(output_file, dict) and output_file.get("path") == DOCUMENT_PATH:
            _, document = _parse_file(output_file)
            return document
    raise ValueError("it names no record document")


def _parse_document(data: bytes) -> dict[str, Any]:
    """Parse the JSON of an entry. Raises ValueError."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or not isinstance(document.get("outputFiles"), list):
        raise ValueError("an action result has output files")
    if document.get("exitCode", 0) != 0:
        raise ValueError("the action failed")
    return document


def _parse_file(output_file: object) -> tuple[str, Output]:
    """The path and the CAS file of an output file. Raises ValueError."""
    if not isinstance(output_file, dict) or not isinstance(output_file.get("path"), str):
        raise ValueError("an output file has a path")
    file_digest = output_file.get("digest")
    if not isinstance(file_digest, dict) or not is_digest(file_digest.get("hash")):
        raise ValueError("an output file has a digest")
    size = file_digest.get("sizeBytes", "0")
    if isinstance(size, str) and size.isascii() and size.isdigit():
        size = int(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("a digest has a size")
    return output_file["path"], Output(file_digest["hash"], size)


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _signature_json(signature: Signature) -> dict[str, str]:
    return {
        "signer": signature.signer,
        "publicKey": _encode_base64(signature.public_key),
        "domain": signature.domain,
        "builder": signature.builder,
        "signedAt": signature.signed_at,
        "signature": _encode_base64(signature.value),
    }


def _valid_contents(
    output_files: Sequence[Mapping[str, object]], files: Sequence[tuple[str, Output]]
) -> dict[str, bytes]:
    """SHA-256 → the bytes of a small file (rule 6), not verified. Contents that are not valid base64 are left out."""
    contents = {}
    for output_file, (_, file) in zip(output_files, files, strict=True):
        text = output_file.get("contents")
        if isinstance(text, str) and text:
            with contextlib.suppress(ValueError):
                contents[file.sha256] = _decode_base64(text)
    return contents


def _parse_signatures(raw: object) -> tuple[Signature, ...]:
    """The well-formed signatures in `stdoutRaw` (rule 5), not verified."""
    if not isinstance(raw, str):
        return ()
    try:
        listed = json.loads(_decode_base64(raw))
    except (ValueError, RecursionError):
        return ()
    if not isinstance(listed, list) or len(listed) > MAX_SIGNATURES:
        return ()
    return tuple(signature for signature in map(_parse_signature, listed) if signature is not None)


def _parse_signature(fields: object) -> Signature | None:
    if not isinstance(fields, dict):
        return None
    try:
        signature = Signature(
            _short_text(fields["signer"]),
            _decode_base64(_short_text(fields["publicKey"])),
            _short_text(fields["domain"]),
            _short_text(fields["builder"]),
            _short_text(fields["signedAt"]),
            _decode_base64(_short_text(fields["signature"])),
        )
    except (KeyError, ValueError):
        return None
    sizes = (len(signature.public_key), len(signature.value))
    return signature if sizes == (32, 64) and is_domain(signature.domain) else None


def _short_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT_LENGTH:
        raise ValueError("not a short text")
    return value


def _decode_base64(text: str) -> bytes:
    """Decode base64, in either alphabet and with or without padding, as protobuf's JSON mapping allows."""
    if not _BASE64_PATTERN.fullmatch(text):
        raise ValueError("not base64")
    try:
        unpadded = text.rstrip("=").replace("+", "-").replace("/", "_")
        return base64.urlsafe_b64decode(unpadded + "=" * (-len(unpadded) % 4))
    except binascii.Error as error:
        raise ValueError("not base64") from error


def record_entry(
    document: Output, blobs: Mapping[str, Sequence[Output]], signatures: Sequence[Signature] = ()
) -> ActionResult:
    """The entry of a record: its document, the CAS files of its blobs, and its signatures."""
    files = [(DOCUMENT_PATH, document)]
    for sha256, blob_files in blobs.items():
        files += _files_with_paths(sha256, blob_files)
    return ActionResult(tuple(files), tuple(signatures))


def list_entry(sha256: str, chunks: Sequence[Output]) -> ActionResult:
    """The chunk list of blob `sha256`."""
    return ActionResult(tuple(_files_with_paths(sha256, chunks)))


def parse_chunk_list(data: bytes, sha256: str) -> tuple[Output, ...]:
    """The chunks in `data`, at least two. Raises ValueError if `data` is not the chunk list of blob `sha256`."""
    blobs = ActionResult.from_bytes(data).blobs()
    if list(blobs) != [sha256] or len(blobs[sha256]) < 2:
        raise ValueError(f"not the chunk list of {sha256}")
    return blobs[sha256]


def _files_with_paths(sha256: str, files: Sequence[Output]) -> Iterable[tuple[str, Output]]:
    if len(files) == 1 and files[0].sha256 == sha256:
        return [(f"{_BLOB_PREFIX}{sha256}", files[0])]
    return [(f"{_BLOB_PREFIX}{sha256}/{number}", file) for number, file in enumerate(files)]
