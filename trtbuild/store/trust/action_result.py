"""The JSON form of Bazel's `ActionResult`, which is what an entry under ``ac/`` is.

Source: build/bazel/remote/execution/v2/remote_execution.proto and protobuf's JSON mapping: lowerCamelCase names, an
int64 as a decimal string, a field with its default value may be left out. bazel-remote validates that every output
file of an entry is in its CAS, and collects what no entry names. Hence:

1. A record's entry names the record document (path ``record.json``) and every CAS file that its outputs consist of.
2. The path of a CAS file says what it is a part of: ``blob/<sha256>`` is a whole blob, ``blob/<sha256>/<number>`` the
   numbered chunk of one. So a record's entry alone is enough to put its blobs together.
3. The list of a chunked blob is an entry of its own, under `list_key` of the blob, in the same form.
4. Paths that are neither are kept and protected, and otherwise ignored: later versions may add some.
5. The signatures of a record (core/recipes/trust.py) are in `stdoutRaw`, which every server keeps: base64 of a JSON list.
   Other text there is ignored: the entry of another tool has what that tool printed.
6. An entry may hold the bytes of small files itself (`contents` of an output file), which saves a reader the way for them.
   They are in the CAS too, and are believed as little as what comes from there.
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

from trtbuild.core.recipes.record import Output, is_digest
from trtbuild.core.recipes.trust import Signature, is_domain
from trtbuild.core.values.encoding import digest

#: Path of the record document among a record entry's output files.
DOCUMENT = "record.json"

#: How many signatures of an entry are looked at, and how long what they say may be: verifying costs time.
MAX_SIGNATURES = 16
_MAX_TEXT = 200

_BLOB = "blob/"
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*=*")


def list_key(sha256: str) -> str:
    """The AC key under which the chunk list of blob `sha256` stands."""
    return digest("trtbuild.chunks/1", sha256)


@dataclass(frozen=True)
class ActionResult:
    """The output files of an entry: path and CAS file, in order. And who vouches for the record that it is of."""

    files: tuple[tuple[str, Output], ...]
    signatures: tuple[Signature, ...] = ()
    #: SHA-256 → what is said to be the bytes of that file.
    contents: Mapping[str, bytes] = field(default_factory=dict, compare=False)

    def to_bytes(self) -> bytes:
        """The entry as JSON, UTF-8."""
        listed: list[dict[str, object]] = [
            {"path": path, "digest": {"hash": file.sha256, "sizeBytes": str(file.size)}} for path, file in self.files
        ]
        for said, (_, file) in zip(listed, self.files, strict=True):
            if file.sha256 in self.contents:
                said["contents"] = _base64(self.contents[file.sha256])
        entry: dict[str, object] = {"outputFiles": listed}
        if self.signatures:
            entry["stdoutRaw"] = _base64(_json([_signature_json(signature) for signature in self.signatures]))
        return _json(entry)

    @classmethod
    def from_bytes(cls, data: bytes) -> ActionResult:
        """Raises ValueError when `data` is not the JSON form of an ActionResult of a finished action."""
        document = _document(data)
        files = tuple(_file(entry) for entry in document["outputFiles"])
        return cls(files, _signatures(document.get("stdoutRaw")), _contents(document["outputFiles"], files))

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
    for entry in _document(data)["outputFiles"]:
        if isinstance(entry, dict) and entry.get("path") == DOCUMENT:
            return _file(entry)[1]
    raise ValueError("it names no record document")


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or not isinstance(document.get("outputFiles"), list):
        raise ValueError("an action result has output files")
    if document.get("exitCode", 0) != 0:
        raise ValueError("the action failed")
    return document


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


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _signature_json(signature: Signature) -> dict[str, str]:
    return {
        "signer": signature.signer,
        "publicKey": _base64(signature.public_key),
        "domain": signature.domain,
        "builder": signature.builder,
        "signedAt": signature.signed_at,
        "signature": _base64(signature.value),
    }


def _contents(listed: Sequence[Mapping[str, object]], files: Sequence[tuple[str, Output]]) -> dict[str, bytes]:
    """What is well-formed of rule 6."""
    found = {}
    for said, (_, file) in zip(listed, files, strict=True):
        text = said.get("contents")
        if isinstance(text, str) and text:
            with contextlib.suppress(ValueError):
                found[file.sha256] = _bytes(text)
    return found


def _signatures(raw: object) -> tuple[Signature, ...]:
    """The well-formed signatures in `stdoutRaw` (rule 5)."""
    if not isinstance(raw, str):
        return ()
    try:
        listed = json.loads(_bytes(raw))
    except (ValueError, RecursionError):
        return ()
    if not isinstance(listed, list) or len(listed) > MAX_SIGNATURES:
        return ()
    return tuple(signature for signature in map(_signature, listed) if signature is not None)


def _signature(entry: object) -> Signature | None:
    if not isinstance(entry, dict):
        return None
    try:
        signature = Signature(
            _text(entry["signer"]),
            _bytes(_text(entry["publicKey"])),
            _text(entry["domain"]),
            _text(entry["builder"]),
            _text(entry["signedAt"]),
            _bytes(_text(entry["signature"])),
        )
    except (KeyError, ValueError):
        return None
    sizes = (len(signature.public_key), len(signature.value))
    return signature if sizes == (32, 64) and is_domain(signature.domain) else None


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError("not a short text")
    return value


def _bytes(text: str) -> bytes:
    """What base64 `text` stands for, in either alphabet and with or without padding, as protobuf's JSON mapping has it."""
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64")
    try:
        return base64.urlsafe_b64decode(
            text.rstrip("=").replace("+", "-").replace("/", "_") + "=" * (-len(text.rstrip("=")) % 4)
        )
    except binascii.Error as error:
        raise ValueError("not base64") from error


def record_entry(
    document: Output, blobs: Mapping[str, Sequence[Output]], signatures: Sequence[Signature] = ()
) -> ActionResult:
    """The entry of a record: its document, the CAS files of each blob that its outputs name, and who vouches for it."""
    files = [(DOCUMENT, document)]
    for sha256, parts in blobs.items():
        files += _paths(sha256, parts)
    return ActionResult(tuple(files), tuple(signatures))


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
