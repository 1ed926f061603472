"""Entries in the format of Bazel's ActionResult."""

from __future__ import annotations

import base64
import json

import pytest

from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import Signature
from trtbuild.store.trust.action_result import (
    MAX_SIGNATURES,
    ActionResult,
    list_entry,
    list_key,
    parse_chunk_list,
    record_entry,
)

#: Four digests.
A, B, C, D = (letter * 64 for letter in "abcd")


def test_the_format_of_a_record_entry() -> None:
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
    parsed = ActionResult.from_bytes(entry.to_bytes())
    assert parsed == entry
    assert parsed.document == Output(A, 10)
    assert parsed.blobs() == {B: (Output(B, 4),), C: (Output(D, 5), Output(B, 4), Output(D, 5))}


def test_the_key_of_a_list_is_part_of_the_format() -> None:
    assert list_key(A) == LIST_KEY


LIST_KEY = "7a9ed99a0e23805b4861e351fd4d7e5435c1243f201dd28721ee8e2e2d2c39f8"


def test_parses_a_chunk_list() -> None:
    chunks = (Output(A, 5), Output(B, 6))
    assert parse_chunk_list(list_entry(C, chunks).to_bytes(), C) == chunks


def test_parses_entries_that_a_server_rewrote() -> None:
    """A server may omit default values, add fields, and change white space and the order of fields."""
    text = json.dumps(
        {
            "executionMetadata": {"worker": "w"},
            "outputFiles": [{"digest": {"hash": A}, "isExecutable": False, "path": "record.json"}],
            "exitCode": 0,
        },
        indent=2,
    )
    assert ActionResult.from_bytes(text.encode()).document == Output(A, 0)


def test_keeps_unknown_paths() -> None:
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
def test_rejects_invalid_entries(text: bytes) -> None:
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
        [(f"blob/{A}", A), (f"blob/{A}/1", B)],
        [(f"blob/{A}/0", B), (f"blob/{A}", A)],
        [("blob/../x/0", A)],
    ],
)
def test_rejects_blobs_with_missing_or_duplicate_parts(paths: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError):
        ActionResult(tuple((path, Output(sha256, 1)) for path, sha256 in paths)).blobs()


def test_rejects_the_list_of_another_blob() -> None:
    with pytest.raises(ValueError):
        parse_chunk_list(list_entry(C, (Output(A, 5), Output(B, 6))).to_bytes(), D)
    with pytest.raises(ValueError):
        parse_chunk_list(record_entry(Output(A, 1), {B: (Output(B, 1),)}).to_bytes(), B)


SIGNED = Signature("ci", bytes(range(32)), "release", "me@here", "2026-01-02T03:04:05Z", bytes(range(64)))
#: The JSON object of `SIGNED` in an entry.
LISTED = {
    "signer": "ci",
    "publicKey": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "domain": "release",
    "builder": "me@here",
    "signedAt": "2026-01-02T03:04:05Z",
    "signature": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==",
}


def test_the_format_of_signatures() -> None:
    data = record_entry(Output(A, 10), {}, [SIGNED]).to_bytes()
    raw = json.loads(data)["stdoutRaw"]
    assert data == (
        b'{"outputFiles":[{"path":"record.json","digest":{"hash":"%s","sizeBytes":"10"}}],"stdoutRaw":"%s"}'
        % (A.encode(), raw.encode())
    )
    assert base64.b64decode(raw) == json.dumps([LISTED], separators=(",", ":")).encode()
    assert ActionResult.from_bytes(data).signatures == (SIGNED,)
    assert b"stdoutRaw" not in record_entry(Output(A, 10), {}).to_bytes()


def signatures_in(listed: object) -> tuple[Signature, ...]:
    """The signatures that are read from an entry with the JSON value `listed` in place of the list of signatures."""
    raw = base64.b64encode(json.dumps(listed).encode()).decode()
    return ActionResult.from_bytes(json.dumps({"outputFiles": [], "stdoutRaw": raw}).encode()).signatures


def test_parses_url_safe_base64_without_padding() -> None:
    """protobuf's JSON mapping allows both alphabets of base64, with or without padding."""
    raw = base64.urlsafe_b64encode(json.dumps([{**LISTED, "signer": "ÿ?>"}], ensure_ascii=False).encode()).decode()
    assert "-" in raw or "_" in raw
    text = json.dumps({"outputFiles": [], "stdoutRaw": raw.rstrip("=")})
    assert [signature.signer for signature in ActionResult.from_bytes(text.encode()).signatures] == ["ÿ?>"]


def test_ignores_invalid_signatures() -> None:
    wrong: list[object] = [None, 1, "x", {}, []]
    wrong += [{**LISTED, name: value} for name in LISTED for value in (None, 1, [], "x" * 201)]
    wrong += [{**LISTED, "publicKey": LISTED["signature"]}, {**LISTED, "signature": "!"}, {**LISTED, "domain": "a b"}]
    for entry in wrong:
        assert signatures_in([entry]) == ()
        assert signatures_in([entry, LISTED, {**LISTED, "more": 1}]) == (SIGNED, SIGNED)
    for listed in (None, {}, "x", LISTED):
        assert signatures_in(listed) == ()


def test_ignores_all_signatures_if_there_are_too_many() -> None:
    assert len(signatures_in([LISTED] * MAX_SIGNATURES)) == MAX_SIGNATURES
    assert signatures_in([LISTED] * (MAX_SIGNATURES + 1)) == ()


# "aGVsbG8=" is "hello" in base64. The longest value is the base64 of JSON that is nested too deeply.
@pytest.mark.parametrize("raw", ["", "!", "=", "aGVsbG8=", "W1tbW1tb" * 20_000, 7, None, ["x"], {}])
def test_ignores_the_standard_output_of_another_tool(raw: object) -> None:
    text = json.dumps({"outputFiles": [{"path": "x", "digest": {"hash": A}}], "stdoutRaw": raw})
    assert ActionResult.from_bytes(text.encode()) == ActionResult((("x", Output(A, 0)),))
