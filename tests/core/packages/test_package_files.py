"""The files that an index names. No name leads out of the package."""

from __future__ import annotations

import json

import pytest

from trtbuild.core.packages.package_files import read_files

A = "a" * 64


def test_an_index_is_read_as_files_and_targets() -> None:
    data = json.dumps(
        {"files": {"names.json": {"sha256": A, "size": 3}}, "targets": {"ada": {}, "hopper": {}}}
    ).encode()
    result = read_files(data)
    assert (result.files, result.targets, result.data) == ({"names.json": A}, ("ada", "hopper"), data)


@pytest.mark.parametrize(
    "name", ["../../stolen", "/etc/stolen", "engines/../../stolen", "engines/\0", "engines//etc/stolen.plan", ""]
)
def test_rejects_a_file_outside_of_the_package(name: str) -> None:
    with pytest.raises(ValueError, match="not a file of a package"):
        read_files(json.dumps({"files": {name: {"sha256": A}}}).encode())


def test_rejects_a_path_in_place_of_a_digest() -> None:
    with pytest.raises(ValueError, match="not a file of a package"):
        read_files(json.dumps({"files": {"fine": {"sha256": "../digest"}}}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"3", b'{"files": 3}', b'{"files": {"a": {}}}', b"[" * 100_000])
def test_rejects_invalid_indexes(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, RecursionError)):
        read_files(data)
