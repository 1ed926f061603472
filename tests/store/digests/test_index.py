"""A project's index stores and forgets facts, such as digests of files. It unpickles no value, and uses no file that a row
names.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from trtbuild.store.digests.index import Index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    opened = Index(folder)
    yield opened
    opened.close()


class Bomb:
    """An object that creates the file `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def nothing_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the path of a file for `Bomb`. After the test, check that nothing was unpickled."""
    mark = tmp_path / "unpickled"
    calls: list[object] = []
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *arguments: calls.append(arguments))
    yield mark
    assert not mark.exists()
    assert calls == []


def forge(folder: Path, **columns: object) -> None:
    """Write a row for the name "forged" to the database.

    The column `mode` says how diskcache stores the value: 1 is inline, 2 a file of bytes, 3 a file of text, 4 a pickle.
    """
    row = {"key": "forged", "raw": 1, "store_time": 1.0, "access_time": 1.0, "mode": 1, "size": 0, **columns}
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    with closing(sqlite3.connect(folder / "cache.db")) as database, database:
        database.execute(f"INSERT OR REPLACE INTO Cache ({names}) VALUES ({marks})", list(row.values()))


@pytest.mark.parametrize("fact", ["", "text", "a" * 100_000, 0, -(2**63), 2**63 - 1, 1.5, float("inf")])
def test_returns_facts_unchanged(index: Index, folder: Path, fact: str | int | float) -> None:
    index.set("name", fact)
    assert index.get("name") == fact
    reopened = Index(folder)
    assert (reopened.get("name"), type(reopened.get("name"))) == (fact, type(fact))
    reopened.close()


def test_returns_none_for_unknown_and_forgotten_names(index: Index) -> None:
    assert index.get("name") is None
    index.set("name", 1)
    index.forget("name")
    assert index.get("name") is None


def test_returns_many_facts_at_once(index: Index) -> None:
    facts = {f"name {number}": number for number in range(1200)}  # too many names for one query
    index.set_many(facts)
    assert index.get_many([*facts, "unknown"]) == facts
    assert index.get_many([]) == {}


def test_creates_no_file_beside_the_database(index: Index, folder: Path) -> None:
    index.set("name", "x" * 1_000_000)
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"cache.db"}


@pytest.mark.parametrize("fact", [None, True, b"bytes", [1], 2**63, object()])
def test_rejects_invalid_facts(index: Index, fact: object) -> None:
    with pytest.raises(TypeError):
        index.set("name", fact)  # type: ignore[arg-type]
    assert index.get("name") is None


def test_rejects_a_forged_row(index: Index, folder: Path, nothing_unpickled: Path, tmp_path: Path) -> None:
    index.set("name", 1)
    secret = tmp_path / "secret"
    secret.write_bytes(pickle.dumps(Bomb(nothing_unpickled)))
    pickled = pickle.dumps(Bomb(nothing_unpickled))
    rows: list[dict[str, object]] = [
        {"mode": 4, "value": pickled},
        {"mode": 1, "value": pickled},
        {"mode": 4, "filename": "../secret"},
        {"mode": 3, "filename": "../secret"},
        {"mode": 2, "filename": str(secret)},
        {"mode": 1, "filename": "../secret", "value": "text"},
        {"mode": 1, "value": None},
        {"mode": None, "value": "text"},
        {"mode": "1; DROP TABLE Cache", "value": "text"},
    ]
    for row in rows:
        forge(folder, **row)
        assert index.get("forged") is None, row
        forge(folder, **row)
        assert index.get_many(["forged", "name"]) == {"name": 1}, row
        assert index.get_many(["forged"]) == {}, row
        forge(folder, **row)
        index.set("forged", "new")  # replaces the row, and must not delete the file that the row names
        assert index.get("forged") == "new", row
        assert secret.exists(), row
    assert index.get("name") == 1


def test_dropping_an_expired_forged_row_does_not_delete_its_file(
    index: Index, folder: Path, nothing_unpickled: Path, tmp_path: Path
) -> None:
    index.set("name", 1)
    (tmp_path / "precious").write_bytes(b"")
    forge(folder, filename="../precious", expire_time=1.0)
    index.set("other", 2)  # diskcache removes expired rows and their files when it writes
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO Settings VALUES ('_directory', '/')",
        "INSERT INTO Settings VALUES ('get', 'x')",
        "INSERT INTO Settings VALUES ('disk_filename', 'x')",
        "INSERT INTO Settings VALUES ('sqlite_writable_schema', 1)",
        "UPDATE Settings SET value = 'delete; x' WHERE key = 'sqlite_journal_mode'",
        "UPDATE Settings SET value = 'x' WHERE key = 'count'",
        "CREATE TABLE other (x)",
        "CREATE TRIGGER t AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
    ],
)
def test_replaces_a_forged_database(folder: Path, statement: str, nothing_unpickled: Path) -> None:
    first = Index(folder)
    first.set("name", 1)
    first.close()
    with closing(sqlite3.connect(folder / "cache.db")) as database, database:
        database.execute(statement)
    index = Index(folder)
    assert index.get("name") is None
    index.set("name", 2)
    assert index.get("name") == 2
    index.close()


def test_an_index_keeps_its_facts_when_it_is_opened_again(folder: Path) -> None:
    """If a release of diskcache had another schema, each opening would replace the index (index.py, rule 2)."""
    first = Index(folder)
    first.set("name", 1)
    first.close()
    second = Index(folder)
    assert second.get("name") == 1
    second.close()


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_replaces_a_broken_database(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "cache.db").write_bytes(content)
    index = Index(folder)
    assert index.get("name") is None
    index.set("name", 1)
    assert index.get("name") == 1
    index.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_does_not_wait_for_a_named_pipe(folder: Path, suffix: str) -> None:
    """A checkout may contain one. SQLite would wait in a system call, so another process opens the database."""
    first = Index(folder)
    first.set("a", 1)
    first.close()
    path = folder / f"cache.db{suffix}"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    program = f"from trtbuild.store.digests.index import Index\nindex = Index({str(folder)!r})\nindex.set('b', 2)\n"
    command = [sys.executable, "-c", f"{program}print(index.get('a'), index.get('b'))"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert process.stdout == "None 2\n"


def test_continues_if_the_database_breaks_while_in_use(index: Index, folder: Path) -> None:
    index.set("name", 1)
    for path in folder.iterdir():
        path.write_bytes(b"\xff" * 20_000)
    index.get("name")
    index.set("name", 2)
    assert index.get("name") in (None, 2)
    index.set("other", 3)
    assert index.get("other") == 3


def test_continues_if_the_database_is_deleted_while_in_use(index: Index, folder: Path) -> None:
    index.set("name", 1)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    index.set("name", 2)
    assert index.get("name") in (None, 2)


def test_an_unusable_folder_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "$HOME"):
        index = Index(folder)
        index.set("name", 1)
        assert index.get("name") is None
    assert (tmp_path / "file").read_bytes() == b""


def test_does_not_replace_a_busy_database(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.set("name", 1)
    index.close()
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as writer:
        reader = Index(folder)
        assert reader.get("name") == 1
        reader._cache.close()  # so that the next use opens a connection with the timeout below
        reader._cache._timeout = 0.05
        writer.execute("BEGIN IMMEDIATE")
        reader.set("name", 2)  # not stored, because the database is busy
        writer.execute("ROLLBACK")
        assert reader.get("name") == 1
        reader.close()


def test_several_threads_may_use_one_index(index: Index) -> None:
    def work(number: int) -> None:
        for step in range(20):
            index.set(f"{number} {step}", step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [index.get(f"{number} 19") for number in range(4)] == [19] * 4


def test_the_import_of_the_index_does_not_load_diskcache() -> None:
    code = "import sys, trtbuild.store.digests.index, trtbuild.store.digests.fingerprint; print('diskcache' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == "False"
