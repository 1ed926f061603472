"""Outputs are written when their content differs, files first and the index last."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from trtbuild.core.packaging import SCHEMA
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Record
from trtbuild.driver import outputs
from trtbuild.store.memory import MemoryStore


def digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def a_package(store: MemoryStore, **plans: bytes) -> tuple[dict[str, object], Record]:
    files = {f"engines/ada/{name}.plan": store.put_bytes(data).to_json() for name, data in plans.items()}
    index = {"schema": SCHEMA, "files": files}
    kept = {"index": store.put_bytes(json.dumps(index).encode()), "names": store.put_bytes(b"{}")}
    return index, Record(Recipe("package", 1, ()), kept)


def test_only_files_whose_content_differs_are_written(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = a_package(store, a=b"one", b=b"two")
    files = outputs.output_files("package", "dist/m", index, record)
    assert outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    assert outputs.in_place(tmp_path, files, digest)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert not outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    index, record = a_package(store, a=b"one", b=b"changed")
    files = outputs.output_files("package", "dist/m", index, record)
    assert not outputs.in_place(tmp_path, files, digest)
    assert outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    assert (tmp_path / "dist/m/engines/ada/b.plan").read_bytes() == b"changed"
    same = tmp_path / "dist/m/engines/ada/a.plan"
    assert same.stat().st_mtime_ns == times[same]


def test_the_index_is_written_last(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = a_package(store, a=b"one")
    assert outputs.output_files("package", "dist/m", index, record)[-1].path == "dist/m/index.json"


def test_files_that_the_old_index_named_go_and_others_stay(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = a_package(store, a=b"one", gone=b"two")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    (tmp_path / "dist/m/engines/ada/mine.txt").write_text("keep me")
    index, record = a_package(store, a=b"one")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    left = {path.name for path in (tmp_path / "dist/m/engines/ada").iterdir()}
    assert left == {"a.plan", "mine.txt"}


def test_an_old_index_cannot_name_files_outside_its_package(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "dist/m").mkdir(parents=True)
    outside = tmp_path / "precious"
    outside.write_text("keep me")
    forged = {"schema": SCHEMA, "files": {"../../precious": {}, str(outside): {}}}
    (tmp_path / "dist/m/index.json").write_text(json.dumps(forged))
    index, record = a_package(store, a=b"one")
    files = outputs.output_files("package", "dist/m", index, record)
    outputs.write_output(tmp_path, "package", "dist/m", files, store, digest)
    assert outside.read_text() == "keep me"


def test_raw_plans_are_put_by_target(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = a_package(store, a=b"one")
    files = outputs.output_files("plans", "dist/plans", index, record)
    assert [file.path for file in files] == ["dist/plans/ada/a.plan"]


def test_raw_plans_of_engines_that_are_no_more_go_and_others_stay(tmp_path: Path) -> None:
    store = MemoryStore()
    index, record = a_package(store, a=b"one", gone=b"two")
    files = outputs.output_files("plans", "dist/plans", index, record)
    outputs.write_output(tmp_path, "plans", "dist/plans", files, store, digest)
    (tmp_path / "dist/plans/ada/mine.plan").write_text("keep me")
    last = Recipe("package", 1, (("engines", {"a@ada": "0", "gone@ada": "1"}),))
    index, record = a_package(store, a=b"one")
    files = outputs.output_files("plans", "dist/plans", index, record)
    outputs.write_output(tmp_path, "plans", "dist/plans", files, store, digest, last)
    assert {path.name for path in (tmp_path / "dist/plans/ada").iterdir()} == {"a.plan", "mine.plan"}


def test_a_directory_in_the_place_of_a_file_is_not_in_place(tmp_path: Path) -> None:
    def strict(path: Path) -> str | None:
        if path.is_dir():
            raise IsADirectoryError(path)
        return digest(path)

    (tmp_path / "a").mkdir()
    assert not outputs.in_place(tmp_path, [outputs.OutputFile("a", "0" * 64)], strict)
