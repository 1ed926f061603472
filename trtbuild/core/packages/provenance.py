"""What is known of how right a package is: ``provenance.json`` beside its index.

It names the package's index by its SHA-256, and the index names every engine by its own: what was verified are these
bytes and no others. Of any other package, or after a change of a single byte, it says nothing (`of`).

Who can write into a package's directory can write this file too. Whoever wants more than that goes by the record of the
verification, whose key each entry names: where keys are trusted, the record is signed like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "trtbuild.provenance/1"
NAME = "provenance.json"


@dataclass(frozen=True)
class Provenance:
    """What was verified of a package. `verified` are the entries of the document (docs/verify.md), none where nothing is
    known; `void` says why a document that is there does not count."""

    verified: tuple[Mapping[str, Any], ...] = ()
    void: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"verified": [dict(entry) for entry in self.verified], "void": self.void}


def document(model: str, index_sha256: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document for the package with this index."""
    return {"schema": SCHEMA, "model": model, "index": index_sha256, "verified": [dict(entry) for entry in entries]}


def to_bytes(found: Mapping[str, Any]) -> bytes:
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def of(data: bytes | None, index_sha256: str) -> Provenance:
    """What the document `data` says of the package whose index has this digest; `data` is None where there is none."""
    if data is None:
        return Provenance()
    try:
        found = json.loads(data)
        if found["schema"] != SCHEMA:
            return Provenance(void=f"{NAME} is of another format: {found['schema']!r:.60}")
        if found["index"] != index_sha256:
            return Provenance(void=f"{NAME} is about another package: this one was not verified since it was built")
        entries = tuple(found["verified"])
        if not all(isinstance(entry, dict) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        return Provenance(void=f"{NAME} cannot be read")
    return Provenance(entries)
