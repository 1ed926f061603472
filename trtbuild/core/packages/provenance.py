"""The results of verifying a package: ``provenance.json`` beside its index.

The file has the SHA-256 of the package's index, and the index has the SHA-256 of every engine. `parse` ignores the results
if the index has another SHA-256.

Anyone who can write into a package's directory can also write this file. The record of the verification is stronger
evidence, because it is signed if trusted keys are configured. An entry names the record's key, if there is a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "trtbuild.provenance/1"
PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True)
class Provenance:
    """The results of verifying a package. `verified` are the entries of the document (docs/verify.md).

    `void` is the reason why the document does not count, or None."""

    verified: tuple[Mapping[str, Any], ...] = ()
    void: str | None = None


@dataclass(frozen=True)
class Summary:
    """The parts of an entry that are printed.

    `error` is the largest error, `tolerance` the allowed error, and `points` the number of compared points (choices of
    input sizes and values)."""

    by: str
    status: str
    targets: tuple[str, ...]
    error: float | None
    tolerance: float | None
    points: int
    finished: str | None


def summary(entry: Mapping[str, Any]) -> Summary:
    """Return the summary of an entry of `Provenance.verified`.

    Another version of trtbuild may have written the entry. So each member may be missing. A value that is not the expected
    number or list counts as missing, and other members are converted to text."""
    results = [*_list_or_empty(entry.get("partitions")), entry.get("whole")]
    errors = [result.get("error") for result in results if isinstance(result, dict)]
    tolerance, finished = entry.get("tolerance"), entry.get("finished")
    return Summary(
        by=str(entry.get("by", "an unknown program")),
        status=str(entry.get("status", "unknown")),
        targets=tuple(str(target) for target in _list_or_empty(entry.get("targets"))),
        error=max((number for error in errors if (number := _number_or_none(error)) is not None), default=None),
        tolerance=_number_or_none(tolerance),
        points=len(_list_or_empty(entry.get("points"))),
        finished=str(finished) if finished else None,
    )


def _number_or_none(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # an integer that no float can hold
        return None


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def document(model: str, index_sha256: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "model": model, "index": index_sha256, "verified": [dict(entry) for entry in entries]}


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """The bytes of the file with the document `content`."""
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def parse(data: bytes | None, index_sha256: str) -> Provenance:
    """The results in `data` for the package whose index has this digest. `data` is None if there is no file."""
    if data is None:
        return Provenance()
    try:
        content = json.loads(data)
        if content["schema"] != SCHEMA:
            return Provenance(void=f"{PROVENANCE_FILE} has another format: {content['schema']!r:.60}")
        if content["index"] != index_sha256:
            return Provenance(
                void=f"{PROVENANCE_FILE} is about another package: this one was not verified since it was built"
            )
        entries = tuple(content["verified"])
        if not all(isinstance(entry, dict) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        return Provenance(void=f"{PROVENANCE_FILE} cannot be read")
    return Provenance(entries)
