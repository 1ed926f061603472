"""What is known of how right a package is."""

from __future__ import annotations

import json

import pytest

from trtbuild.core.packages import provenance

A, B = "a" * 64, "b" * 64
ENTRIES = [{"by": "onnxruntime", "status": "right"}]
DATA = provenance.to_bytes(provenance.document("net", A, ENTRIES))


def test_of_the_package_that_it_names() -> None:
    found = provenance.parse(DATA, A)
    assert found.void is None and list(found.verified) == ENTRIES
    assert found.to_json() == {"verified": ENTRIES, "void": None}


def test_nothing_is_known_without_a_document() -> None:
    assert provenance.parse(None, A) == provenance.Provenance()


def test_it_is_void_for_any_other_package() -> None:
    found = provenance.parse(DATA, B)
    assert not found.verified and "was not verified since it was built" in str(found.void)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        DATA[:-10],
        b"\xff" + DATA,
        DATA.replace(b"provenance/1", b"provenance/2"),
        json.dumps({"schema": provenance.SCHEMA, "index": A}).encode(),
        json.dumps({"schema": provenance.SCHEMA, "index": A, "verified": 3}).encode(),
        json.dumps({"schema": provenance.SCHEMA, "index": A, "verified": [3]}).encode(),
        b"[" * 100_000,
    ],
)
def test_a_damaged_document_says_nothing(data: bytes) -> None:
    found = provenance.parse(data, A)
    assert not found.verified and found.void
