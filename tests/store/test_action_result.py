"""Entries as Bazel knows them."""

from __future__ import annotations

import json

import pytest

from trtbuild.core.record import Output
from trtbuild.store.action_result import (
    ActionResult,
    list_entry,
    list_key,
    listed_chunks,
    record_entry,
)

A, B, C, D = (letter * 64 for letter in "abcd")


def test_the_form_of_a_record() -> None:
    entry = record_entry(Output(A, 10), {B: (Output(B, 4),), C: (Output(D, 5), Output(B, 4), Output(D, 5))})
    assert json.loads(entry.to_bytes()) == {
        "outputFiles": [
            {"path": "record.json", "digest": {"hash": A, "sizeBytes": "10"}},
            {"path": f"blob/{B}", "digest": {"hash": B, "sizeBytes": "4"}},
            {"path": f"blob/{C}/0", "digest": {"hash": D, "sizeBytes": "5"}},
            {"path": f"blob/{C}/1", "digest": {"hash": B, "sizeBytes": "4"}},
            {"path": f"blob/{C}/2", "digest": {"hash": D, "sizeBytes": "5"}},
        ]
    }
    again = ActionResult.from_bytes(entry.to_bytes())
    assert again == entry
    assert again.document == Output(A, 10)
    assert again.blobs() == {B: (Output(B, 4),), C: (Output(D, 5), Output(B, 4), Output(D, 5))}


def test_the_key_of_a_list_is_part_of_the_format() -> None:
    assert list_key(A) == LIST_KEY


LIST_KEY = "7a9ed99a0e23805b4861e351fd4d7e5435c1243f201dd28721ee8e2e2d2c39f8"


def test_a_list_comes_back() -> None:
    chunks = (Output(A, 5), Output(B, 6))
    assert listed_chunks(list_entry(C, chunks).to_bytes(), C) == chunks


def test_what_a_server_may_have_rewritten() -> None:
    """protojson leaves out defaults and adds what it knows; order of fields and white space are free."""
    text = json.dumps(
        {
            "executionMetadata": {"worker": "w"},
            "outputFiles": [{"digest": {"hash": A}, "isExecutable": False, "path": "record.json"}],
            "exitCode": 0,
        },
        indent=2,
    )
    assert ActionResult.from_bytes(text.encode()).document == Output(A, 0)


def test_unknown_paths_are_kept() -> None:
    text = json.dumps({"outputFiles": [{"path": "record.sig", "digest": {"hash": A, "sizeBytes": 3}}]})
    entry = ActionResult.from_bytes(text.encode())
    assert entry.files == (("record.sig", Output(A, 3)),)
    assert entry.blobs() == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"outputFiles": {}}',
        b'{"outputFiles": [1]}',
        b'{"outputFiles": [{"path": "x"}]}',
        b'{"outputFiles": [{"path": "x", "digest": {"hash": "../../etc/passwd", "sizeBytes": "1"}}]}',
        b'{"outputFiles": [{"path": "x", "digest": {"hash": "%s", "sizeBytes": "-1"}}]}' % (b"a" * 64),
        b'{"outputFiles": [{"path": "x", "digest": {"hash": "%s", "sizeBytes": true}}]}' % (b"a" * 64),
        b'{"outputFiles": [{"path": "x", "digest": {"hash": "%s", "sizeBytes": 1.5}}]}' % (b"a" * 64),
        b'{"outputFiles": [], "exitCode": 1}',
        b"[" * 100_000,
    ],
)
def test_rejects_what_is_no_entry(text: bytes) -> None:
    with pytest.raises(ValueError):
        ActionResult.from_bytes(text)


@pytest.mark.parametrize(
    "paths",
    [
        [(f"blob/{A}", B)],
        [(f"blob/{A}/1", B)],
        [(f"blob/{A}/0", B), (f"blob/{A}/2", B)],
        [(f"blob/{A}/0", B), (f"blob/{A}/0", B)],
        [(f"blob/{A}", A), (f"blob/{A}", A)],
        [("blob/../x/0", A)],
    ],
)
def test_rejects_blobs_that_cannot_be_put_together(paths: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError):
        ActionResult(tuple((path, Output(sha256, 1)) for path, sha256 in paths)).blobs()


def test_rejects_the_list_of_another_blob() -> None:
    with pytest.raises(ValueError):
        listed_chunks(list_entry(C, (Output(A, 5), Output(B, 6))).to_bytes(), D)
    with pytest.raises(ValueError):
        listed_chunks(record_entry(Output(A, 1), {B: (Output(B, 1),)}).to_bytes(), B)
