"""Stores that several users with different umasks share, and stores whose files have wrong times."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.core.recipes.record import Record
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

MIB = 1 << 20
YEAR_S = 365 * 86400.0

# The program imports everything before it changes its user, because the interpreter's folder may be readable by root only.
# ctypes is for the store, which imports it when it writes.
USER_PROGRAM = """
import ctypes, os, sys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore
import trtbuild.store.local.chunking
trtbuild.store.local.chunking._import_fastcdc()
umask, uid, groups, root, number, statements = sys.argv[1:]
os.umask(int(umask, 8))
if int(uid):
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(uid))
    os.setuid(int(uid))
def record(number, **outputs):
    return Record(Recipe("engine", 1, (("number", int(number)),)), outputs)
def build(number):
    with store.session(), store.building(record(number).recipe.key):
        if store.get_record(record(number).recipe.key) is None:
            plan = store.put_bytes(bytes([int(number)]) * 2_000_000)
            store.put_record(record(number, plan=plan, info=store.put_bytes(b"of %d" % int(number))))
        for output in store.get_record(record(number).recipe.key).outputs.values():
            assert len(store.get_bytes(output.sha256)) == output.size
try:
    store = LocalStore(root)
    exec(statements)
except StoreUnavailable as error:
    print("unavailable:", error.text, "|", error.hint)
"""


def run_as(umask: str, root: Path, number: int, statements: str, uid: int = 0, groups: str = "") -> str:
    """Run `statements` in `USER_PROGRAM`, with this umask, user ID, equal group ID, and supplementary `groups`. Returns the
    output. `uid` 0 stands for the current user."""
    process = subprocess.run(
        [sys.executable, "-c", USER_PROGRAM, umask, str(uid), groups, str(root), str(number), statements],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def modes(root: Path) -> tuple[set[int], set[int]]:
    """The modes of all directories below `root`, and the modes of all files."""
    paths = list(root.rglob("*"))
    return (
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()},
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()},
    )


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become other users")


# -- users


@pytest.mark.parametrize(("root_mode", "file_mode"), [(0o2775, 0o664), (0o770, 0o660), (0o1777, 0o666)])
def test_files_of_a_shared_store_have_the_roots_modes_with_any_umask(
    tmp_path: Path, root_mode: int, file_mode: int
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(root_mode)
    for number, umask in enumerate(("022", "077", "000")):
        assert run_as(umask, root, number, "build(number); collect(store)") == ""
    assert modes(root) == ({root_mode}, {file_mode})


def test_a_private_store_follows_the_umask(tmp_path: Path) -> None:
    run_as("077", tmp_path / "store", 1, "build(number)")
    assert modes(tmp_path / "store") == ({0o700}, {0o400, 0o600})


@as_root
@pytest.mark.parametrize("setgid", [True, False])
def test_users_with_different_umasks_share_a_store(open_to_all: Path, setgid: bool) -> None:
    """Each user uses earlier users' records and builds another record. Then one user collects entries of all users."""
    root = open_to_all / "store"
    root.mkdir()
    os.chown(root, 64001, 64100)
    root.chmod(0o2770 if setgid else 0o770)
    users = [("077", 64001), ("022", 64002), ("027", 64003)]
    for turn, (umask, uid) in enumerate(users):
        statements = "for each in range(int(number) + 1): build(each)"
        assert run_as(umask, root, turn, statements, uid, "64100") == ""
    assert modes(root) == ({0o2770 if setgid else 0o770}, {0o660})
    assert {path.stat().st_gid for path in root.rglob("*")} == {64100}
    store = LocalStore(root)
    for path in [*root.glob("cas/*/*"), *root.glob("ac/*/*")]:
        os.utime(path, (1, 1))
    abandoned = root / "sessions" / f"1-{'ab' * 12}"
    abandoned.touch()
    os.chown(abandoned, 64001, 64100)
    abandoned.chmod(0o660)
    # the third user uses one record, then the second user collects all other records
    assert run_as("077", root, 1, "build(number)", 64003, "64100") == ""
    run_as("077", root, 0, "collect(store, max_age_s=1000.0)", 64002, "64100")
    assert verify(store).damage == ()
    assert len(list(root.glob("ac/*/*"))) == 2, "the record that was used, and the chunk list of its plan"
    assert list(root.glob("sessions/*")) == []


@as_root
def test_a_user_without_write_access_can_read_but_not_write(open_to_all: Path) -> None:
    root = open_to_all / "store"
    root.mkdir()
    os.chown(root, 64001, 64001)
    assert run_as("022", root, 1, "build(number)", 64001) == ""
    assert run_as("022", root, 1, "found = store.get_record(record(number).recipe.key); assert found", 64002) == ""
    output = run_as("022", root, 2, "build(number)", 64002)
    assert output.startswith("unavailable: the cache cannot be used: Permission denied | make the directory writable")
    root.chmod(0o700)
    output = run_as("022", root, 1, "build(number)", 64002)
    assert output.startswith("unavailable: the cache cannot be used: Permission denied")
    assert verify(LocalStore(root)).damage == ()


# -- clocks


@pytest.mark.parametrize("clock_error_s", [YEAR_S, -YEAR_S])
def test_keeps_used_entries_whose_times_are_wrong_by_a_year(
    local: LocalStore,
    record_of: Callable[..., Record],
    age: Callable[..., None],
    payload: Callable[..., bytes],
    clock_error_s: float,
) -> None:
    records = [
        local.put_record(record_of(number, plan=local.put_bytes(payload(number, 2 * MIB)))) for number in range(3)
    ]
    age(local, clock_error_s)
    user = LocalStore(local.root)
    with user.session():
        used = user.get_record(records[0].recipe.key)
        assert used == records[0]
        assert user.has(used.outputs["plan"].sha256)
        new = user.put_record(record_of(9, plan=user.put_bytes(b"written within the session")))
        collect(LocalStore(local.root), max_size=0, max_age_s=0.0, slack_s=0.0)
        for record in (used, new):
            assert user.get_record(record.recipe.key) == record
            user.get_bytes(record.outputs["plan"].sha256)
    assert verify(local).damage == ()


@pytest.mark.parametrize("clock_error_s", [YEAR_S, -YEAR_S])
def test_a_session_whose_start_is_wrong_by_a_year_protects_its_entries(
    local: LocalStore, record_of: Callable[..., Record], clock_error_s: float
) -> None:
    """The clock was changed after the session began. The negative slack moves the cut-off an hour into the future,
    so that the collection removes every entry that no session protects."""
    old = local.put_record(record_of(1, plan=local.put_bytes(b"found")))
    with local.session():
        (session,) = (local.root / "sessions").iterdir()
        start_ns = session.stat().st_mtime_ns + int(clock_error_s * 1e9)
        os.utime(session, ns=(start_ns, start_ns))
        local.entries.sessions._set_start(str(session), start_ns)
        assert local.get_record(old.recipe.key) == old and local.has(old.outputs["plan"].sha256)
        new = local.put_record(record_of(2, plan=local.put_bytes(b"written")))
        report = collect(LocalStore(local.root), max_size=0, max_age_s=0.0, slack_s=-3600.0)
        assert report.records_removed == () and report.blobs_removed == 0
        assert local.get_bytes(old.outputs["plan"].sha256) == b"found"
        assert local.get_bytes(new.outputs["plan"].sha256) == b"written"
    assert collect(local, max_size=0, slack_s=-3600.0).records_kept == 0, "after its end, the session protects nothing"


@pytest.mark.parametrize("clock_error_s", [YEAR_S, -YEAR_S])
def test_removes_only_leftovers_with_old_times_and_the_others_are_harmless(
    local: LocalStore, clock_error_s: float
) -> None:
    local.put_bytes(b"x")
    for name in (
        f"tmp/1-{'ab' * 12}",
        f"sessions/2-{'cd' * 12}",
        f"locks/{'ab' * 32}",
        f"quarantine/cas-{'ab' * 32}-00000000",
    ):
        (local.root / name).touch()
        os.utime(local.root / name, (time.time() + clock_error_s,) * 2)
    report = collect(local)
    assert report.leftovers_removed == (4 if clock_error_s < 0 else 0)
    with local.session(), local.building("ab" * 32):
        assert local.put_bytes(b"y").size == 1
    assert not (local.root / "locks" / ("ab" * 32)).exists()
