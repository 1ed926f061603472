"""The recorder: what it records, and files that change during the trace."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

from trtbuild.core.recipes.dependency import Dependency
from trtbuild.errors import SourceError
from trtbuild.stages.trace.discovery import hooks
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.wrappers import ReaderWrappers
from trtbuild.stages.trace.user_code.observe import file_digest, observe
from trtbuild.stages.trace.user_code.owners import FileOwners


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    (root / "a.txt").write_text("a")
    return root


@pytest.fixture
def recorder(project: Path) -> Recorder:
    return Recorder(project, FileOwners(), {"A_VARIABLE": "value at the start"})


def parts(recorder: Recorder) -> dict[str, str]:
    """The observed state of each dependency, such as ``file:a.txt``."""
    return {seen.dependency.part: seen.state for seen in recorder.observations()}


def test_a_file_that_changes_during_the_trace_is_an_error(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project / "a.txt")
    (project / "a.txt").write_text("b")
    with pytest.raises(SourceError) as caught:
        recorder.observations()
    assert caught.value.code == "changed-during-trace" and "a.txt" in caught.value.text
    assert caught.value.hint == "run it again"


def test_a_same_size_edit_in_the_same_instant_is_an_error(recorder: Recorder, project: Path) -> None:
    path = project / "a.txt"
    recorder.record_file(path)
    status = path.stat()
    path.write_text("b")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError):
        recorder.observations()


def test_an_old_file_is_compared_by_its_times(
    recorder: Recorder, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.stages.trace.discovery.pins._GRANULARITY_S", -1.0)  # every file counts as old
    path = project / "a.txt"
    recorder.record_file(path)
    assert len(parts(recorder)["file:a.txt"]) == 64
    os.utime(path, (5, 5))
    with pytest.raises(SourceError):
        recorder.observations()


def test_a_file_that_differs_from_the_compiled_bytes_is_an_error(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project / "a.txt", digest="0" * 64)
    with pytest.raises(SourceError):
        recorder.observations()


def test_a_file_that_appears_during_the_trace_is_an_error(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project / "new.txt")
    (project / "new.txt").write_text("")
    with pytest.raises(SourceError):
        recorder.observations()


def test_a_trace_that_looks_for_a_file_and_then_writes_it_is_uncacheable(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project / "cache.npy")
    recorder.record_write(project / "cache.npy")
    (project / "cache.npy").write_text("written")
    recorder.record_file(project / "cache.npy")
    assert parts(recorder) == {}
    assert recorder.storage_refusals == ["the model's code writes to cache.npy, which it read before"]


def test_a_trace_that_changes_a_folder_that_it_listed_is_uncacheable(recorder: Recorder, project: Path) -> None:
    (project / "sub").mkdir()
    recorder.record_listing(project / "sub")
    recorder.record_write(project / "sub/new.txt")
    (project / "sub/new.txt").write_text("")
    assert parts(recorder) == {}
    assert recorder.storage_refusals == ["the model's code creates files in sub, and also lists its entries"]


def test_a_file_that_the_trace_writes_is_not_a_dependency(recorder: Recorder, project: Path) -> None:
    recorder.record_write(project / "cache.npy")
    (project / "cache.npy").write_text("written")
    recorder.record_file(project / "cache.npy")
    assert parts(recorder) == {}


def test_a_trace_that_reads_a_file_and_overwrites_it_is_uncacheable(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project / "a.txt")
    recorder.record_write(project / "a.txt")
    (project / "a.txt").write_text("b")
    assert parts(recorder) == {}
    assert recorder.storage_refusals == ["the model's code writes to a.txt, which it read before"]


def test_a_listing_that_changes_during_the_trace_is_an_error(recorder: Recorder, project: Path) -> None:
    (project / "sub").mkdir()
    recorder.record_listing(project / ".." / "project" / "sub")
    (project / "sub/new.txt").write_text("")
    with pytest.raises(SourceError, match="sub"):
        recorder.observations()


def test_a_read_through_a_symlink_records_the_link_and_the_target_as_files(recorder: Recorder, project: Path) -> None:
    (project / "link.txt").symlink_to("a.txt")
    recorder.record_file(project / "link.txt")
    assert list(parts(recorder)) == ["file:link.txt", "file:a.txt"]


def test_two_dots_after_a_symlink_lead_to_the_parent_of_its_target(recorder: Recorder, project: Path) -> None:
    (project.parent / "shared/models").mkdir(parents=True)
    (project.parent / "shared/c.yaml").write_text("1")
    (project / "models").symlink_to(project.parent / "shared/models")
    recorder.record_file(f"{project}/models/../c.yaml")
    recorder.record_file(f"{project}/other/../a.txt")
    seen = parts(recorder)
    digest = hashlib.sha256(b"1").hexdigest()
    assert seen["file:models/../c.yaml"] == seen[f"file:{project.parent}/shared/c.yaml"] == digest
    assert "file:c.yaml" not in seen and len(seen["file:a.txt"]) == 64
    (project.parent / "shared/c.yaml").write_text("2")
    dependency = Dependency("file", "models/../c.yaml")
    assert observe(dependency, project, file_digest) == hashlib.sha256(b"2").hexdigest()


def test_a_link_that_is_read_is_recorded_by_its_target_path(recorder: Recorder, project: Path) -> None:
    (project / "link.txt").symlink_to("a.txt")
    (project / "inside").symlink_to(project / "sub")
    for name in ("link.txt", "inside", "a.txt", "none", project.parent):
        recorder.record_link(project / name)
    assert parts(recorder) == {"link:link.txt": "a.txt", "link:inside": "./sub"}
    (project / "link.txt").unlink()
    (project / "link.txt").symlink_to("b.txt")
    with pytest.raises(SourceError, match=r"link\.txt changed"):
        recorder.observations()


def test_a_listing_of_the_project_ignores_outputs(recorder: Recorder, project: Path) -> None:
    recorder.record_listing(project)
    before = parts(recorder)
    assert list(before) == ["listing:."]
    (project / "dist").mkdir()
    (project / "cache").mkdir()
    assert parts(recorder) == before
    (project / "new.json").write_text("")
    with pytest.raises(SourceError, match="changed while"):
        recorder.observations()


def test_a_file_outside_the_project_has_an_absolute_name(recorder: Recorder, project: Path) -> None:
    outside = project.parent / "outside.txt"
    outside.write_text("")
    recorder.record_file(outside)
    assert list(parts(recorder)) == [f"file:{outside}"]


def test_a_file_in_the_home_directory_is_recorded_together_with_this_directory(project: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model.json").write_text("{}")
    recorder = Recorder(project, FileOwners(), {"HOME": str(tmp_path / "home")})
    recorder.record_file(project / "net.py")
    recorder.record_file(tmp_path / "other.json")
    recorder.record_file(tmp_path / "home" / "model.json")
    names = [seen.dependency.part for seen in recorder.observations()]
    assert [name.removeprefix(f"file:{tmp_path}/") for name in names][-2:] == ["environment:HOME", "home/model.json"]
    assert names.index("environment:HOME") == 2


def test_directories_above_the_project_are_not_dependencies(recorder: Recorder, project: Path) -> None:
    recorder.record_file(project)
    recorder.record_file(project.parent)
    recorder.record_listing(project.parent)
    recorder.record_listing("/")
    assert parts(recorder) == {}


def test_directories_and_special_files_are_recorded_by_their_kind(recorder: Recorder, project: Path) -> None:
    (project / "sub").mkdir()
    recorder.record_file(project / "sub")
    os.mkfifo(project / "pipe")
    recorder.record_file(project / "pipe")
    assert parts(recorder) == {"file:sub": "directory", "file:pipe": "special"}


def test_system_files_and_invalid_names_are_ignored(recorder: Recorder) -> None:
    for name in ("/proc/self/maps", "/dev/null", "/etc/passwd", os.__file__, pytest.__file__, 3, None, b"\0"):
        recorder.record_file(name)
    assert set(parts(recorder)) == {"distribution:pytest"}


def test_a_variable_that_the_trace_sets_is_not_a_dependency(recorder: Recorder) -> None:
    recorder.record_variable("BEFORE")
    recorder.record_variable_change("BEFORE")
    recorder.record_variable_change("OWN")
    recorder.record_variable("OWN")
    recorder.record_variable("PYTHONHASHSEED")  # the parent process of a trace sets this variable
    assert parts(recorder) == {"environment:BEFORE": "absent"}


def test_a_thread_may_record_while_dependencies_are_observed(
    recorder: Recorder, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.record_file(project / "a.txt")

    def observe_while_a_thread_records(*arguments: Any) -> str:
        recorder.record_file(project / "late.txt")  # stands for the call of another thread
        return observe(*arguments)

    monkeypatch.setattr("trtbuild.stages.trace.discovery.recording.observe", observe_while_a_thread_records)
    assert list(parts(recorder)) == ["file:a.txt"]


def test_the_digest_of_compiled_bytes_stays_the_pin_in_each_segment(recorder: Recorder, project: Path) -> None:
    """A file that changes after Python has compiled it is an error, whichever segments another recorder receives.

    The pin of a dependency is its state at its first use. The recorder compares the pin with the state at the end.
    A segment has the pins that a recorder stored between two calls of `take`.
    """
    digest = hashlib.sha256(b"a").hexdigest()
    segments = []
    for _ in range(2):
        recorder.record_file(project / "a.txt", digest)
        segments.append(recorder.take())
    (project / "a.txt").write_text("b")
    for added in (segments[:1], segments[1:], segments):
        other = Recorder(project, FileOwners(), {})
        other.record_file(project / "a.txt")  # the pin is the digest of b"b"
        for segment in added:
            other.add(segment)
        other.record_file(project / "a.txt", hashlib.sha256(b"b").hexdigest())  # the pin stays the digest of b"a"
        with pytest.raises(SourceError):
            other.observations()


@pytest.mark.parametrize("declares_files", [False, True])
def test_a_data_loader_with_workers_is_uncacheable_unless_its_files_are_declared(
    recorder: Recorder, declares_files: bool
) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(2))
    recorder.declares_files = declares_files
    wrappers = ReaderWrappers(recorder)
    wrappers.install()
    try:
        assert len(list(torch.utils.data.DataLoader(data))) == 2 and not recorder.storage_refusals
        assert len(list(torch.utils.data.DataLoader(data, num_workers=1))) == 2
    finally:
        wrappers.remove()
    assert ["starts a process" in text for text in recorder.storage_refusals] == [True] * (not declares_files)


@pytest.mark.parametrize("declares_files", [False, True])
def test_a_fork_is_uncacheable_unless_the_files_are_declared(recorder: Recorder, declares_files: bool) -> None:
    recorder.declares_files = declares_files
    hooks.set_recorder(recorder)
    try:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    finally:
        hooks.set_recorder(None)
    assert ["starts a process" in text for text in recorder.storage_refusals] == [True] * (not declares_files)


@pytest.mark.parametrize(
    "uri", ["file:{}", "file:{}?mode=ro", "file://{}?mode=ro&immutable=1", "file://localhost{}"], ids=str
)
def test_a_database_that_is_opened_by_a_uri_is_recorded_by_its_path(
    recorder: Recorder, project: Path, uri: str
) -> None:
    path = project / "my data.db"
    sqlite3.connect(path).close()
    path.write_bytes(b"")
    hooks.set_recorder(recorder)
    try:
        sqlite3.connect(uri.format(quote(str(path))), uri=True).close()
        sqlite3.connect("file::memory:?cache=shared", uri=True).close()
    finally:
        hooks.set_recorder(None)
    assert list(parts(recorder)) == ["file:my data.db", "file:my data.db-wal", "file:my data.db-journal"]


@pytest.fixture
def hooked(recorder: Recorder, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs code as code of the user, in the project, and records its audit events."""
    monkeypatch.chdir(project)

    def run(code: str) -> None:
        hooks.set_recorder(recorder)
        try:
            exec(compile(f"from pathlib import Path\n{code}", str(project / "net.py"), "exec"), {})
        finally:
            hooks.set_recorder(None)

    return run


def test_a_log_that_user_code_only_appends_to_is_no_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    (project / "train.log").write_text("old\n")
    hooked("with open('train.log', 'a') as log: log.write('new')")
    assert parts(recorder) == {} and recorder.storage_refusals == []
    hooked("Path('train.log').read_text()")
    assert recorder.storage_refusals == ["the model's code appends to train.log, and also reads it"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_that_user_code_creates_if_it_is_missing_is_a_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None], exists: bool
) -> None:
    if exists:
        (project / "b.txt").write_text("b")
    hooked(
        "try:\n with open('b.txt', 'x') as file: file.write('b')\nexcept FileExistsError: pass\nPath('b.txt').read_text()"
    )
    assert parts(recorder) == ({"file:b.txt": hashlib.sha256(b"b").hexdigest()} if exists else {})
    assert bool(recorder.storage_refusals) is not exists


@pytest.mark.parametrize("function", ["symlink", "link"])
def test_the_target_of_a_new_link_is_a_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None], function: str
) -> None:
    hooked(f"import os\nos.{function}('a.txt', 'new.txt')\nPath('new.txt').read_text()\nos.remove('new.txt')")
    assert parts(recorder)["file:a.txt"] == hashlib.sha256(b"a").hexdigest()
    assert recorder.storage_refusals == []


def test_the_target_of_a_link_that_exists_already_is_a_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    (project / "old.txt").symlink_to("a.txt")
    hooked("import os\ntry: os.symlink('a.txt', 'old.txt')\nexcept FileExistsError: pass\nPath('old.txt').read_text()")
    assert parts(recorder).keys() == {"file:old.txt", "file:a.txt"}


@pytest.mark.parametrize("entry", ["", "b.txt", "b/c.txt"])
def test_a_temporary_directory_may_be_listed(recorder: Recorder, hooked: Callable[[str], None], entry: str) -> None:
    hooked(
        "import os, tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
        f" path = Path(folder, {entry!r})\n path.parent.mkdir(exist_ok=True)\n"
        f" {entry!r} and path.write_text('b')\n for _ in os.walk(folder): pass"
    )
    assert not any(part.startswith("listing:") for part in parts(recorder)) and recorder.storage_refusals == []


def test_a_directory_that_exists_already_may_be_created_and_is_listed(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    (project / "data").mkdir()
    hooked("import os\nos.makedirs('data', exist_ok=True)\nos.listdir('data')")
    assert parts(recorder).keys() == {"listing:data"}


def test_a_directory_that_is_listed_by_its_descriptor_is_a_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    (project / "data").mkdir()
    hooked("import os\nfd = os.open('data', os.O_RDONLY)\nos.listdir(fd)\nos.close(fd)")
    assert "listing:data" in parts(recorder)


def test_a_file_is_a_dependency_if_a_temporary_directory_had_a_file_of_this_name(
    recorder: Recorder, hooked: Callable[[str], None]
) -> None:
    hooked(
        "import tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
        " Path(folder, 'a.txt').write_text('b')\nPath('a.txt').read_text()"
    )
    assert parts(recorder) == {"file:a.txt": hashlib.sha256(b"a").hexdigest()}


def test_a_database_that_the_model_writes_is_no_error(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    hooked("import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t(v)')\nc.commit()\nc.close()")
    assert "file:a.db" not in parts(recorder)
    assert recorder.storage_refusals == ["the model's code writes to a.db, which it read before"]


def test_changes_of_a_database_that_are_in_the_file_beside_it_are_a_dependency(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    with contextlib.closing(sqlite3.connect(project / "a.db")) as writer:
        writer.execute("pragma journal_mode=wal")
        writer.execute("create table t(v)")
        writer.commit()
        hooked("import sqlite3\nsqlite3.connect('a.db').execute('select * from t').fetchall()")
        assert len(parts(recorder)["file:a.db-wal"]) == 64


def test_a_database_whose_connection_stays_open_has_no_changes(
    recorder: Recorder, project: Path, hooked: Callable[[str], None]
) -> None:
    with contextlib.closing(sqlite3.connect(project / "a.db")) as writer:
        writer.execute("pragma journal_mode=wal")
        writer.execute("create table t(v)")
    hooked("import sqlite3, sys\nsys.c = sqlite3.connect('a.db')\nsys.c.execute('select * from t').fetchall()")
    assert (project / "a.db-wal").read_bytes() == b""
    assert parts(recorder)["file:a.db-wal"] == "absent" and recorder.storage_refusals == []
    del sys.c  # type: ignore[attr-defined]


def test_a_test_whether_a_path_is_a_link_is_recorded_for_user_code_in_the_project(
    recorder: Recorder, project: Path, tmp_path: Path
) -> None:
    recorder.record_link(project / "a.txt")
    recorder.record_link(tmp_path / "outside.txt", is_user=True)
    assert parts(recorder) == {}
    recorder.record_link(project / "a.txt", is_user=True)
    assert parts(recorder) == {"link:a.txt": "absent"}


def test_a_lookup_by_a_library_counts_beside_a_file_that_was_read(recorder: Recorder, tmp_path: Path) -> None:
    folder = Path(os.path.realpath(tmp_path)) / "models"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    recorder.note_library_lookup(folder / "best.bin")
    recorder.note_library_lookup(folder / "other" / "best.bin")
    assert parts(recorder) == {}
    recorder.record_file(folder / "config.json")
    assert parts(recorder).keys() == {f"file:{folder}/config.json", f"file:{folder}/best.bin"}
