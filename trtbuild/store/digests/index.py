"""The index of a project: a database of small facts, such as digests of files. It may be deleted at any time.

Rules
1. diskcache stores the facts (text, integers and floats), inline in their rows. Its own classes `Disk` and `JSONDisk` are
   not used, because they unpickle values, and read and remove any file that a row names. An untrusted checkout, which may
   contain a `.trtbuild/`, could misuse this. So a row that is not inline is rejected, and no file is read, written or
   removed because of a row.
2. When diskcache opens a database, it sets attributes and runs pragmas from the settings table. So a database whose
   settings or schema differ from those that this code writes is replaced before it is opened.
3. Correctness does not depend on the index. After the first error the database is replaced by an empty one. After a second
   error the process works without an index. A busy database is not an error. The index is in the project's `.trtbuild/`,
   never in a store, because a store may be on NFS, where SQLite's locks do not work.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

Fact: TypeAlias = str | int | float

_INT64_LIMIT = 1 << 63

# The number of errors after which a process works without an index (rule 3).
_MAX_ERRORS = 2

#: The files of a database: their names after ``cache.db``.
_SUFFIXES = ("", "-wal", "-shm", "-journal")

#: The number of names in one query. SQLite before 3.32 accepts 999.
_NAMES_PER_QUERY = 500

_SETTINGS: dict[str, object] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "size_limit": 64 << 20,
    "cull_limit": 10,
    "sqlite_auto_vacuum": 1,
    "sqlite_cache_size": 1 << 13,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,  # truncating a mapped database would raise SIGBUS
    "sqlite_synchronous": 0,  # a fact that a loss of power deletes is computed again
    "disk_min_file_size": 1 << 30,
    "disk_pickle_protocol": 0,
}
_COUNTER_NAMES = {"count", "size", "hits", "misses"}
_SCHEMA_NAMES = {
    "Settings",
    "Cache",
    "Cache_key_raw",
    "Cache_expire_time",
    "Cache_store_time",
    "sqlite_autoindex_Settings_1",
    "Settings_count_insert",
    "Settings_count_delete",
    "Settings_size_insert",
    "Settings_size_update",
    "Settings_size_delete",
}


class RowRefused(Exception):
    """A row that this code has not written."""


def _is_inline(value: object) -> bool:
    return type(value) in (str, float) or (type(value) is int and -_INT64_LIMIT <= value < _INT64_LIMIT)


@lru_cache(maxsize=1)
def _inline_disk_class() -> Any:
    """The class `InlineDisk`. It is defined in a function so that diskcache is imported late."""
    from diskcache import Disk  # takes 66 ms to import
    from diskcache.core import MODE_RAW

    class InlineDisk(Disk):
        """A `Disk` that stores all values inline (rule 1)."""

        def put(self, key: Any) -> Any:
            if type(key) is not str:
                raise TypeError("keys are text")
            return key, True

        def get(self, key: Any, raw: Any) -> Any:
            if raw != 1 or type(key) is not str:
                raise RowRefused("a key that is not inline text")
            return key

        def store(self, value: Any, read: Any, key: Any = None) -> Any:
            if read or not _is_inline(value):
                raise TypeError("values are text, 64-bit integers and floats")
            return 0, MODE_RAW, None, value

        def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
            if mode != MODE_RAW or filename is not None or read or not _is_inline(value):
                raise RowRefused("a value that is not inline")
            return value

        def filename(self, key: Any = None, value: Any = None) -> Any:
            raise RowRefused("a value in a file")

        def remove(self, file_path: Any) -> None:
            """Does nothing: no row has a file (rule 1)."""

    return InlineDisk


class Index:
    """Facts by name, in the directory `folder`. Safe for several threads and processes. Raises no database errors."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder).absolute()
        self._lock = threading.Lock()
        self._cache: Any = None
        self._error_count = 0

    def get(self, name: str) -> Fact | None:
        """The fact, or None if it is not known."""
        cache = self._open()
        if cache is None:
            return None
        try:
            fact: Fact | None = cache.get(name)
            return fact
        except RowRefused:
            self.forget(name)
        except Exception as error:
            self._handle_error(cache, error)
        return None

    def get_many(self, names: Sequence[str]) -> dict[str, Fact]:
        """The known facts with these names, by name. A query for many names is about as fast as for one."""
        cache = self._open() if names else None
        if cache is None:
            return {}
        try:
            return dict(_facts(cache, names))
        except RowRefused:  # `get` deletes the row
            return {name: fact for name in names if (fact := self.get(name)) is not None}
        except Exception as error:
            self._handle_error(cache, error)
        return {}

    def set(self, name: str, fact: Fact) -> None:
        """Store a fact. Raises TypeError unless it is text, a 64-bit integer or a float."""
        self.set_many({name: fact})

    def set_many(self, facts: Mapping[str, Fact]) -> None:
        """Store facts, in one transaction. Raises TypeError as `set` does."""
        for name, fact in facts.items():
            if type(name) is not str or not _is_inline(fact):
                raise TypeError(f"not a fact for the index: {name!r}")
        cache = self._open() if facts else None
        if cache is None:
            return
        try:
            with cache.transact():
                for name, fact in facts.items():
                    cache.set(name, fact)
        except Exception as error:
            self._handle_error(cache, error)

    def forget(self, name: str) -> None:
        """Delete a fact."""
        cache = self._open()
        if cache is not None:
            try:
                cache.delete(name)
            except Exception as error:
                self._handle_error(cache, error)

    def close(self) -> None:
        """Close the database. The next use opens it again."""
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            with contextlib.suppress(Exception):
                cache.close()

    def _open(self) -> Any:
        with self._lock:
            while self._cache is None and self._error_count < _MAX_ERRORS:
                try:
                    self._cache = self._open_database()
                except Exception:  # diskcache raises many kinds of errors for a damaged database (rule 3)
                    self._error_count += 1
                    self._discard_files()
            return self._cache

    def _open_database(self) -> Any:
        if not _is_own_database(self._folder / "cache.db"):
            self._discard_files()
        disk = _inline_disk_class()
        from diskcache import Cache

        folder = str(self._folder)
        if os.path.expandvars(folder) != folder:
            raise ValueError("diskcache would use another directory")
        return Cache(folder, timeout=2, disk=disk, **_SETTINGS)

    def _handle_error(self, cache: Any, error: Exception) -> None:
        if type(error).__name__ == "Timeout" or "locked" in str(error):
            return  # busy, not broken
        with self._lock:
            if self._cache is cache:
                self._cache = None
                self._error_count += 1
                with contextlib.suppress(Exception):
                    cache.close()
                self._discard_files()

    def _discard_files(self) -> None:
        for suffix in _SUFFIXES:
            with contextlib.suppress(OSError):
                (self._folder / f"cache.db{suffix}").unlink()


def _facts(cache: Any, names: Sequence[str]) -> Iterator[tuple[str, Fact]]:
    """The known facts with these `names`, as (name, fact). Raises RowRefused, and the errors of SQLite.

    diskcache has no public function for many keys. So this is diskcache's query for one key, with a condition for many."""
    for start in range(0, len(names), _NAMES_PER_QUERY):
        group = tuple(names[start : start + _NAMES_PER_QUERY])
        marks = ",".join("?" * len(group))
        query = f"SELECT key, mode, filename, value FROM Cache WHERE raw = 1 AND key IN ({marks})"
        for name, mode, filename, value in cache._sql(query, group).fetchall():
            yield name, cache.disk.fetch(mode, filename, value, False)


def _is_own_database(path: Path) -> bool:
    """Whether the database looks as if this code has written it (rule 2), or does not exist yet."""
    if any(_is_special(path.with_name(f"{path.name}{suffix}")) for suffix in _SUFFIXES):
        return False  # SQLite would open a named pipe, and wait for its other end
    if not path.exists():
        return True
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=2)) as database:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            settings = dict(database.execute("SELECT key, value FROM Settings")) if "Settings" in names else {}
    except (sqlite3.Error, ValueError, TypeError):
        return False
    counters = {key: settings.pop(key) for key in _COUNTER_NAMES & settings.keys()}
    return (
        names <= _SCHEMA_NAMES
        and all(type(value) is int for value in counters.values())
        and all(key in _SETTINGS and _SETTINGS[key] == value for key, value in settings.items())
    )


def _is_special(path: Path) -> bool:
    """Whether something other than a regular file is at `path`."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
