"""The job that a driver sends to a worker, and the worker's answer. Both are JSON texts.

Rules
1. A message contains no blobs. It names them by their digests, and lists the files of each blob in the store that both
   sides reach.
2. The record of an answer has the form of an entry in a remote cache: `entry` is an ActionResult with the worker's
   signatures, and `document` is the record.
3. Without `replace`, equal keys and stores give equal jobs, so the scheduler can do one job for two builds.
4. The answer to a comparison has a record, too, whose only output is the report. The driver reads the report. If an engine
   is wrong according to the report, the driver does not store the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.codec import decode, encode
from trtbuild.core.values.encoding import is_digest
from trtbuild.driver.gpu_comparisons.job import ComparisonJob

#: The version of the messages. It is in the label of a worker's release (`labels`), and in each message.
PROTOCOL = 2

Message = TypeVar("Message")

#: ``done``: the answer has a record. ``failed``: the job cannot succeed. ``died``: the process that compiled or compared
#: has died. ``unfit``: this worker cannot do the job, but another worker may be able to.
Outcome = Literal["done", "failed", "died", "unfit"]


@dataclass(frozen=True)
class BlobFiles:
    """A blob, and the files that it consists of in a store."""

    sha256: str
    files: tuple[Output, ...]

    def to_json(self) -> list[Any]:
        return [self.sha256, [[file.sha256, file.size] for file in self.files]]

    @classmethod
    def from_json(cls, data: Any) -> BlobFiles:
        """The inverse of `to_json`. Raises ValueError for an invalid digest or size, and for files that cannot be a blob.

        A blob is one file with the digest of the blob, or several files. Digests are checked because the other side may
        be hostile, and the store uses them as file names."""
        sha256, files = data[0], tuple(Output(name, size) for name, size in data[1])
        if not all(is_digest(name) for name in (sha256, *(file.sha256 for file in files))):
            raise ValueError("a blob or a file has a name that is not a digest")
        if not all(type(file.size) is int and file.size >= 0 for file in files):
            raise ValueError(f"a file of blob {sha256} has an invalid size")
        if not files or (len(files) == 1 and files[0].sha256 != sha256):
            raise ValueError(f"blob {sha256} has no file, or only one file with another digest")
        return cls(sha256, files)


@dataclass(frozen=True)
class FarmJob:
    """The job to compile an engine, or to compare engines with PyTorch or onnxruntime.

    `key` is the key of the engine step or of the verification. The `inputs` are in the store with the label `store`. With
    `replace`, the worker does not use an earlier record.
    """

    protocol: int
    key: str
    job: ComparisonJob | EngineJob
    store: str
    inputs: tuple[BlobFiles, ...]
    replace: bool = False

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> FarmJob:
        """The inverse of `to_text`. Raises ValueError if this release cannot read the text."""
        return _decode(cls, text, "job")


@dataclass(frozen=True)
class Answer:
    """The answer to a job: a record with its entry, or an error (`trtbuild.driver.workers.worker.error_to_json`).

    `worst` is a file with the inputs for which a comparison found the worst error. It is not signed, and no result
    depends on it. A user can repeat the comparison with these inputs (``verify --replay``).
    """

    protocol: int
    key: str
    worker: str
    outcome: Outcome
    document: str = ""
    entry: str = ""
    error: Mapping[str, Any] | None = None
    log: str = ""
    duration_s: float = 0.0
    peak_rss_bytes: int = 0
    worst: BlobFiles | None = None

    def to_text(self) -> str:
        return json.dumps(encode(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Answer:
        """The inverse of `to_text`. Raises ValueError if this release cannot read the text."""
        return _decode(cls, text, "answer")


def _decode(kind: type[Message], text: str, noun: str) -> Message:
    try:
        document = json.loads(text)
        protocol = document["protocol"]
        if protocol != PROTOCOL:
            raise ValueError(f"the {noun} has version {protocol} of the protocol, and this trtbuild knows {PROTOCOL}")
        return decode(kind, document)
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"the {noun} cannot be read: {type(error).__name__}: {error}") from error
