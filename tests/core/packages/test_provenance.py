"""The document about the verifications of a package.

`a_cut_entry` returns the result for one cut: one way to divide a model into partitions.
"""

from __future__ import annotations

import json

import pytest

from tests.core.verified_values import a_cut_entry, a_partition_entry, a_whole_entry
from trtbuild.core.packages import provenance
from trtbuild.core.values.codec import encode

A, B = "a" * 64, "b" * 64
ENTRIES = [{"by": "onnxruntime", "status": "right"}]
DATA = provenance.to_bytes(provenance.document("net", A, ENTRIES))


def test_a_document_is_valid_for_the_package_that_it_names() -> None:
    result = provenance.parse(DATA, A)
    assert result.void is None and list(result.verified) == ENTRIES
    assert encode(result) == {"verified": ENTRIES, "void": None}


def test_the_provenance_is_empty_without_a_document() -> None:
    assert provenance.parse(None, A) == provenance.Provenance()


def test_a_document_is_void_for_any_other_package() -> None:
    result = provenance.parse(DATA, B)
    assert not result.verified and "was not verified since it was built" in str(result.void)


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
def test_a_damaged_document_is_void(data: bytes) -> None:
    result = provenance.parse(data, A)
    assert not result.verified and result.void


def test_the_summary_of_an_entry_has_its_largest_error() -> None:
    cut = a_cut_entry(
        partitions=[a_partition_entry(error=1e-8), a_partition_entry(error=None)],
        whole=a_whole_entry(error=2.1e-7),
        finished="2026",
    )
    result = provenance.summary(encode(cut))
    assert (result.by, result.status, result.targets, result.finished) == ("onnxruntime", "right", ("ada",), "2026")
    assert (result.error, result.tolerance, result.points) == (2.1e-7, 1e-5, 5)


@pytest.mark.parametrize("value", [None, 3, pytest.param(10**400, id="larger than floats"), "x", [3], {"x": 1}])
def test_the_summary_of_an_entry_with_odd_values_does_not_fail(value: object) -> None:
    assert provenance.summary({}).by == "an unknown program"
    for name in encode(a_cut_entry()):
        provenance.summary({**encode(a_cut_entry()), name: value})
    assert provenance.summary({"partitions": [{"error": value}], "whole": value}).error in (None, 3.0)
