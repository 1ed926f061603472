"""A build writes only the changed files of an output, the index last, and removes files that only the old output had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.store.memory_store import MemoryStore
from trtbuild.core.packages.package_files import PackageFiles, read_files
from trtbuild.core.packages.package_index import SCHEMA
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver import outputs
from trtbuild.errors import BlobMissing
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.index import Index


def digests(paths: Sequence[str]) -> dict[str, str | None]:
    """Path → digest of the file, or None if there is no file."""
    return {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else None for path in paths
    }


def ignore_digests(written: object) -> None:
    """Do nothing. `write_output` needs a function that receives the digests of the files that it writes."""


def put_package(store: MemoryStore, **plans: bytes) -> tuple[PackageFiles, Record]:
    """Store the files of a package with these plans. Return its index and its record."""
    files = {f"engines/ada/{name}.plan": store.put_bytes(data).to_json() for name, data in plans.items()}
    index = json.dumps({"schema": SCHEMA, "files": files}).encode()
    outputs_of_record = {"index": store.put_bytes(index), "names": store.put_bytes(b"{}")}
    return read_files(index), Record(Recipe("package", 1, ()), outputs_of_record)


def test_only_files_whose_content_differs_are_written(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = put_package(store, a=b"one", b=b"two")
    files = outputs.output_files("package", "dist/m", index, record)
    assert outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    assert outputs.is_in_place(tmp_path, files, digests)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert not outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    index, record = put_package(store, a=b"one", b=b"changed")
    files = outputs.output_files("package", "dist/m", index, record)
    assert not outputs.is_in_place(tmp_path, files, digests)
    assert outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    assert (tmp_path / "dist/m/engines/ada/b.plan").read_bytes() == b"changed"
    unchanged = tmp_path / "dist/m/engines/ada/a.plan"
    assert unchanged.stat().st_mtime_ns == times[unchanged]


def test_the_index_is_the_last_of_the_files_to_write() -> None:
    store = MemoryStore()
    index, record = put_package(store, a=b"one")
    assert outputs.output_files("package", "dist/m", index, record)[-1].path == "dist/m/index.json"


def test_files_of_the_old_index_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = put_package(store, a=b"one", gone=b"two")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    (tmp_path / "dist/m/engines/ada/mine.txt").write_text("keep me")
    index, record = put_package(store, a=b"one")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    remaining = {path.name for path in (tmp_path / "dist/m/engines/ada").iterdir()}
    assert remaining == {"a.plan", "mine.txt"}


def test_an_old_index_cannot_name_files_outside_its_package(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "dist/m").mkdir(parents=True)
    outside = tmp_path / "precious"
    outside.write_text("keep me")
    forged = {"schema": SCHEMA, "files": {"../../precious": {}, str(outside): {}}}
    (tmp_path / "dist/m/index.json").write_text(json.dumps(forged))
    index, record = put_package(store, a=b"one")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    assert outside.read_text() == "keep me"


def test_plans_have_a_folder_for_each_target() -> None:
    store = MemoryStore()
    index, record = put_package(store, a=b"one")
    files = outputs.output_files("plans", "dist/plans", index, record)
    assert [file.path for file in files] == ["dist/plans/ada/a.plan"]


def test_plans_of_removed_engines_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = put_package(store, a=b"one", gone=b"two")
    files = outputs.output_files("plans", "dist/plans", index, record)
    outputs.write_output(tmp_path, "plans", "dist/plans", files, store, digests, ignore_digests)
    (tmp_path / "dist/plans/ada/mine.plan").write_text("keep me")
    last_recipe = Recipe("package", 1, (("engines", {"a@ada": "0", "gone@ada": "1"}),))
    index, record = put_package(store, a=b"one")
    files = outputs.output_files("plans", "dist/plans", index, record)
    outputs.write_output(tmp_path, "plans", "dist/plans", files, store, digests, ignore_digests, last_recipe)
    assert {path.name for path in (tmp_path / "dist/plans/ada").iterdir()} == {"a.plan", "mine.plan"}


def test_an_output_is_not_in_place_if_a_directory_has_its_path(tmp_path: Path) -> None:
    def digests_of_files(paths: Sequence[str]) -> dict[str, str | None]:
        if any(Path(path).is_dir() for path in paths):
            raise IsADirectoryError(paths[0])
        return digests(paths)

    (tmp_path / "a").mkdir()
    assert not outputs.is_in_place(tmp_path, [outputs.OutputFile("a", "0" * 64)], digests_of_files)


def test_digests_of_written_files_are_known_without_reading_them(tmp_path: Path) -> None:
    store, file_digests = MemoryStore(), FileDigests(Index(tmp_path / "state"))
    index, record = put_package(store, a=b"one", b=b"two")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(
        tmp_path, "package", "dist/m", files, store, file_digests.sha256_many, file_digests.note_written
    )
    expected = {str(tmp_path / file.path): file.sha256 for file in files}
    known = file_digests.known_digests(expected)
    assert {path: sha256 for path, (sha256, _) in known.items()} == expected


def test_the_index_is_not_written_if_a_file_is_missing(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = put_package(store, **{name: name.encode() for name in "abcdefgh"})
    files = outputs.output_files("package", "dist/m", index, record)
    del store.blobs[files[4].sha256]
    with pytest.raises(BlobMissing):
        outputs.write_output(tmp_path, "package", "dist/m", files, store, digests, ignore_digests)
    assert not (tmp_path / "dist/m/index.json").exists()
