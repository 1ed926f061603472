"""`cache gc` on the project's store, on a local store elsewhere and on a shared directory, with lock files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from trtbuild.core.planning import lockfile
from trtbuild.core.planning.locks import Lock, LockedModel, LockedStep
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.cache import housekeeping
from trtbuild.driver.cache.documents import CacheGc
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import RecordUntrusted, StoreUnavailable, UsageError
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer

DAY_S = 86400.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def fill(store: LocalStore | RemoteStore, root: Path) -> list[Record]:
    """Write three engine records that were last used eight, seven and six days ago."""
    records = []
    for number in range(3):
        plan = store.put_bytes(b"%d" % number * 9000)
        records.append(store.put_record(Record(Recipe("engine", 1, (("n", number),)), {"plan": plan})))
    for path in [*root.glob("ac/??/*"), *root.glob("cas/??/*")]:
        os.utime(path, (time.time() - 9 * DAY_S,) * 2)
    for number, record in enumerate(records):
        last_used = time.time() - (8 - number) * DAY_S
        os.utime(root / "ac" / record.recipe.key[:2] / record.recipe.key, (last_used, last_used))
    return records


def fill_shared_directory(root: Path) -> list[Record]:
    store = RemoteStore(DirectoryTransport(RemoteSettings("team", root.as_uri())), "team")
    records = fill(store, root)
    store.close()
    return records


def which_exist(root: Path, records: list[Record]) -> list[bool]:
    return [(root / "ac" / record.recipe.key[:2] / record.recipe.key).exists() for record in records]


def lock_text(record: Record) -> str:
    step = LockedStep(record.recipe.key, {"plan": record.outputs["plan"]})
    return lockfile.to_text(Lock("linux", {"engine": 1}, {}, {"vit": LockedModel({}, {}, {"vit/engine/a@ada": step})}))


def collect(project: Path, max_size: str | None = None, max_age: str | None = None, **options: object) -> CacheGc:
    return housekeeping.collect(Request(project=project), max_size, max_age, dry_run=False, **options)  # type: ignore[arg-type]


def test_records_in_lock_files_are_kept(project: Path) -> None:
    root = project.parent / "cache"
    records = fill(LocalStore(root), root)
    (project / "trtbuild.lock").write_text(lock_text(records[0]))
    (project / "release.lock").write_text(lock_text(records[2]))
    document = collect(project, "0B", locks=[str(project / "release.lock")])
    assert which_exist(root, records) == [True, False, True]
    assert document.kept_because == {"pinned": 2} and document.cache == str(root)
    collect(project, "0B")
    assert which_exist(root, records) == [True, False, False]


def test_the_size_on_the_command_line_overrides_the_configured_size(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project.parent / "cache"
    records = fill(LocalStore(root), root)
    monkeypatch.setenv("TRTBUILD_CACHE_MAX_SIZE", "1B")
    collect(project, "1GiB")
    assert which_exist(root, records) == [True] * 3
    collect(project)
    assert which_exist(root, records) == [False] * 3


def test_the_trusted_links_of_a_locked_trace_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unsigned links of earlier builds have the same first key, and name the dependencies in another order."""
    root = project.parent / "cache"
    files = [Observation(Dependency("file", name), name[0] * 64) for name in ("a.py", "b.py")]
    declared = Declared("trace", (("source", "net:build"),))
    ci = Signer("ci", bytes(32))
    signing = LocalStore(root, Keyring([ci.trusted], signer=ci))
    for store, observations in ((LocalStore(root), files), (signing, files[::-1])):
        links = StoreLinks(store)
        observed = chain.extend(declared, observations, links.read, links.write, lambda dependency: "")
        trace = store.put_record(Record(keys.user_code(declared, observed), {"graph": store.put_bytes(b"graph")}))
    step = LockedStep(trace.recipe.key, {})
    lock = Lock("linux", {"trace": 1}, {}, {"net": LockedModel({}, {}, {"net/trace": step})})
    (project / "trtbuild.lock").write_text(lockfile.to_text(lock))
    for path in [*root.glob("ac/??/*"), *root.glob("cas/??/*")]:
        os.utime(path, (time.time() - DAY_S,) * 2)
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", str(ci.trusted))
    collect(project, "0B")
    found = chain.follow(declared, StoreLinks(signing).read, lambda dependency: dependency.name[0] * 64)
    assert found == tuple(files[::-1])
    assert signing.get_record(keys.user_code(declared, found).key) is not None


class StoreLinks:
    """Reads and writes links in a store."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def read(self, recipe: Recipe) -> tuple[Dependency, ...] | None:
        with suppress(RecordUntrusted):
            record = self._store.get_record(recipe.key)
            return None if record is None else chain.parse_link(self._store.get_bytes(record.outputs["next"].sha256))
        return None

    def write(self, recipe: Recipe, dependencies: Sequence[Dependency], _ahead: Sequence[Dependency]) -> None:
        output = self._store.put_bytes(chain.link_bytes(dependencies))
        self._store.put_record(Record(recipe, {"next": output}))


def test_a_shared_directory_is_collected(project: Path) -> None:
    root = project.parent / "share"
    records = fill_shared_directory(root)
    (project / "release.lock").write_text(lock_text(records[0]))
    document = collect(project, None, "3d", directory=str(root), locks=[str(project / "release.lock")])
    assert which_exist(root, records) == [True, False, False]
    # each removed record had two blobs (its document and its plan), which a later collection removes
    assert (document.records_removed, document.blobs_condemned, document.cache) == (2, 4, str(root))
    assert not (root / "format").exists() and not (project.parent / "cache").exists()


def test_a_local_store_elsewhere_is_collected_like_the_projects_store(project: Path) -> None:
    root = project.parent / "other"
    records = fill(LocalStore(root), root)
    document = collect(project, None, "180h", directory=str(root))  # 7.5 days
    assert which_exist(root, records) == [False, True, True]
    assert (document.blobs_removed, document.blobs_condemned) == (2, 0)
    assert not (root / "gc").exists()
    with pytest.raises(UsageError, match="local store"):
        collect(project, directory=str(root), grace="2h")


def test_invalid_arguments_are_rejected_before_anything_is_removed(project: Path) -> None:
    root = project.parent / "share"
    records = fill_shared_directory(root)
    for options in ({"grace": "10m"}, {"grace": "soon"}, {"locks": ["absent.lock"]}):
        with pytest.raises(UsageError):
            collect(project, "0B", directory=str(root), **options)
    with pytest.raises(StoreUnavailable, match="not a cache"):
        collect(project, "0B", directory=str(project))
    assert which_exist(root, records) == [True] * 3
