"""A shared directory: several users, races, links and pipes in place of entries, and missing or hanging mounts."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.transports import directory, shared_folder
from trtbuild.store.transports.directory import EMPTY_SHA256, DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings

KEY, OTHER = "ab" * 32, "cd" * 32
LIMIT = 1 << 20

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become other users")


def remote(root: Path, patience_s: float = 4.0) -> DirectoryTransport:
    return DirectoryTransport(RemoteSettings("team", f"file://{root}", patience_s=patience_s))


def entry(root: Path, kind: str = "ac", name: str = KEY) -> Path:
    return root / kind / name[:2] / name


def unfinished_files(root: Path) -> list[Path]:
    return list((root / "tmp").iterdir())


def test_returns_entries_and_follows_the_layout(tmp_path: Path) -> None:
    share = remote(tmp_path / "share")
    assert share.get("cas", KEY, LIMIT) is None and not share.has("cas", KEY)
    assert share.put("cas", KEY, memoryview(b"--data--")[2:-2], once=True)
    assert share.get("cas", KEY, LIMIT) == b"data" and share.has("cas", KEY)
    assert not share.has("ac", KEY), "an `ac` entry and a `cas` entry may have the same name"
    assert entry(tmp_path / "share", "cas").read_bytes() == b"data"
    assert unfinished_files(tmp_path / "share") == []
    with pytest.raises(RemoteLied, match="more than 3 bytes"):
        share.get("cas", KEY, 3)


def test_a_put_with_once_does_not_replace_an_entry(tmp_path: Path) -> None:
    share = remote(tmp_path)
    assert share.put("ac", KEY, b"first", once=True)
    assert not share.put("ac", KEY, b"second", once=True)
    assert share.get("ac", KEY, LIMIT) == b"first"
    assert share.put("ac", KEY, b"third", once=False)
    assert share.get("ac", KEY, LIMIT) == b"third"
    assert unfinished_files(tmp_path) == []


def test_one_of_many_writers_wins(tmp_path: Path) -> None:
    for turn in range(8):  # in each turn, the writers also create the directories at the same moment
        shares = [remote(tmp_path / f"share{turn}") for _ in range(6)]
        barrier, winners = threading.Barrier(len(shares)), list[int]()

        def write(number: int, share: DirectoryTransport, start: threading.Barrier, winning: list[int]) -> None:
            start.wait()
            if share.put("ac", KEY, b"%d" % number, once=True):
                winning.append(number)

        threads = [
            threading.Thread(target=write, args=(number, share, barrier, winners))
            for number, share in enumerate(shares)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert shares[0].get("ac", KEY, LIMIT) == b"%d" % winners[0]
        assert unfinished_files(tmp_path / f"share{turn}") == []


def test_a_link_with_a_lost_response_counts_as_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = remote(tmp_path)
    real_link, lost = os.link, []

    def link_and_lose_the_response(*arguments: object, **rest: object) -> None:
        real_link(*arguments, **rest)  # type: ignore[arg-type]
        lost.append(arguments)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link_and_lose_the_response)
    assert share.put("ac", KEY, b"mine", once=True)
    assert lost
    monkeypatch.undo()
    assert share.get("ac", KEY, LIMIT) == b"mine"
    assert not share.put("ac", KEY, b"another", once=True)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_works_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    tried = []

    def refuse(*arguments: object, **rest: object) -> None:
        tried.append(arguments)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    share = remote(tmp_path)
    assert share.decides_races
    assert share.put("ac", KEY, b"first", once=True)
    assert not share.decides_races, "the later of two simultaneous writers replaces the file"
    assert not share.put("ac", KEY, b"second", once=True)
    assert share.get("ac", KEY, LIMIT) == b"first"
    assert len(tried) == 2 and unfinished_files(tmp_path) == []


def test_an_empty_file_after_a_power_loss_is_not_an_entry(tmp_path: Path) -> None:
    share = remote(tmp_path)
    for kind in ("cas", "ac"):
        share.put(kind, KEY, b"x", once=True)  # type: ignore[arg-type]
        os.truncate(entry(tmp_path, kind), 0)
        assert share.get(kind, KEY, LIMIT) is None and not share.has(kind, KEY)  # type: ignore[arg-type]
        assert share.put(kind, KEY, b"again", once=True)  # type: ignore[arg-type]
        assert share.get(kind, KEY, LIMIT) == b"again"  # type: ignore[arg-type]
    assert hashlib.sha256(b"").hexdigest() == EMPTY_SHA256
    share.put("cas", EMPTY_SHA256, b"", once=True)
    assert share.has("cas", EMPTY_SHA256) and share.get("cas", EMPTY_SHA256, LIMIT) == b""


def test_replaces_links_and_pipes_in_place_of_an_entry(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    share = remote(tmp_path / "share")
    path = entry(tmp_path / "share")
    share.put("ac", KEY, b"x", once=True)
    for create in (
        lambda: path.symlink_to(secret),
        lambda: path.symlink_to("nowhere"),
        lambda: os.mkfifo(path),
    ):
        path.unlink()
        create()
        with pytest.raises(RemoteLied):
            share.get("ac", KEY, LIMIT)
        assert not share.has("ac", KEY)
        assert share.put("ac", KEY, b"right", once=True)
        assert share.get("ac", KEY, LIMIT) == b"right"
    assert secret.read_bytes() == b"secret"


def test_does_not_replace_a_directory_in_place_of_an_entry(tmp_path: Path) -> None:
    share = remote(tmp_path / "share")
    share.put("ac", KEY, b"x", once=True)
    path = entry(tmp_path / "share")
    path.unlink()
    path.mkdir()
    with pytest.raises(RemoteLied):
        share.get("ac", KEY, LIMIT)
    with pytest.raises(RemoteRefused):
        share.put("ac", KEY, b"x", once=True)


@pytest.mark.parametrize("level", ["ac", f"ac/{KEY[:2]}", "tmp"])
def test_does_not_follow_a_link_to_a_directory_elsewhere(tmp_path: Path, level: str) -> None:
    share = remote(tmp_path / "share")
    share.put("ac", KEY, b"x", once=True)
    folder, elsewhere = tmp_path / "share" / level, tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    if level != "tmp":
        with pytest.raises(RemoteLied):
            share.get("ac", KEY, LIMIT)
    with pytest.raises(RemoteRefused):
        share.put("ac", KEY[:2] + OTHER[2:], b"y", once=True)  # in the same subdirectory as KEY
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "", KEY.upper(), f"{KEY}\n", KEY[:63], "/" + KEY])
def test_rejects_invalid_names(tmp_path: Path, name: str) -> None:
    share = remote(tmp_path)
    for call in (lambda: share.get("ac", name, LIMIT), lambda: share.has("ac", name)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        share.put("ac", name, b"", once=True)


def test_a_share_that_is_not_mounted_is_down_and_is_not_created(tmp_path: Path) -> None:
    share = remote(tmp_path / "mnt" / "share")
    with pytest.raises(RemoteDown, match="No such file"):
        share.get("ac", KEY, LIMIT)
    with pytest.raises(RemoteDown):
        share.has("ac", KEY)
    with pytest.raises(RemoteDown, match="mounted"):
        share.put("ac", KEY, b"x", once=True)
    assert list(tmp_path.iterdir()) == []


def test_reading_creates_nothing(tmp_path: Path) -> None:
    share = remote(tmp_path / "share")
    assert share.get("ac", KEY, LIMIT) is None
    assert not share.has("cas", KEY)
    assert not (tmp_path / "share").exists()


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "share").write_bytes(b"")
    share = remote(tmp_path / "share")
    for call in (lambda: share.get("ac", KEY, LIMIT), lambda: share.put("ac", KEY, b"", once=True)):
        with pytest.raises(RemoteDown, match="not a directory"):
            call()


def test_reads_but_does_not_write_a_local_store(tmp_path: Path) -> None:
    remote(tmp_path).put("ac", KEY, b"x", once=True)
    (tmp_path / "format").write_text("trtbuild.store/1\n")
    share = remote(tmp_path)
    assert share.get("ac", KEY, LIMIT) == b"x"
    with pytest.raises(RemoteRefused, match="local store"):
        share.put("ac", OTHER, b"x", once=True)
    assert not entry(tmp_path, name=OTHER).exists()


def test_all_threads_give_up_a_hanging_mount_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first access to the root hangs, like a system call on a dead NFS server."""
    server_is_back, calls = threading.Event(), []

    def hang(self: DirectoryTransport) -> None:
        calls.append(True)
        server_is_back.wait()
        self._answered.set()

    monkeypatch.setattr(DirectoryTransport, "_access_root", hang)
    share = remote(tmp_path, patience_s=0.3)
    errors: list[RemoteFault] = []

    def ask() -> None:
        try:
            share.get("ac", KEY, LIMIT)
        except RemoteFault as error:
            errors.append(error)

    begun = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 8 and all(isinstance(error, RemoteDown) for error in errors)
    assert calls == [True]
    with pytest.raises(RemoteDown, match="has not answered"):
        share.put("ac", KEY, b"x", once=True)
    assert time.monotonic() - begun < 3.0
    server_is_back.set()
    share._answered.wait(5)
    assert share.get("ac", KEY, LIMIT) is None


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        (errno.EACCES, RemoteRefused),
        (errno.EROFS, RemoteRefused),
        (errno.ENOSPC, RemoteFull),
        (errno.EDQUOT, RemoteFull),
        (errno.EIO, RemoteDown),
        (errno.ETIMEDOUT, RemoteDown),
    ],
)
@pytest.mark.parametrize("call", ["open", "fsync", "link", "write"])
def test_a_failed_write_raises_the_error_of_its_error_number_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error_type: type[RemoteFault], call: str
) -> None:
    share = remote(tmp_path)
    share.put("ac", KEY[:2] + OTHER[2:], b"x", once=True)  # creates the directories
    calls = []

    def fail(*arguments: object, **rest: object) -> None:
        calls.append(call)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(shared_folder.os, call, fail)
    with pytest.raises(error_type):
        share.put("ac", KEY, b"x", once=True)
    monkeypatch.undo()
    assert calls
    assert unfinished_files(tmp_path) == [] and not entry(tmp_path).exists()
    assert share.put("ac", KEY, b"x", once=True)


def test_retries_once_after_a_stale_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = remote(tmp_path)
    share.put("ac", KEY, b"x", once=True)
    real_open, failures_left = os.open, 0

    def open_(*arguments: object, **rest: object) -> int:
        nonlocal failures_left
        if failures_left:
            failures_left -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real_open(*arguments, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    failures_left = 1
    assert share.get("ac", KEY, LIMIT) == b"x" and failures_left == 0
    failures_left = 1
    assert share.has("ac", KEY) and failures_left == 0
    failures_left = 1
    assert share.put("ac", OTHER, b"y", once=True) and failures_left == 0
    failures_left = 2
    with pytest.raises(RemoteDown) as caught:
        share.get("ac", KEY, LIMIT)
    assert caught.value.is_transient


def test_updates_the_time_of_a_used_entry_if_it_is_old_or_wrong(tmp_path: Path) -> None:
    share = remote(tmp_path)
    lookups: list[Callable[[], object]] = [lambda: share.has("ac", KEY), lambda: share.get("ac", KEY, LIMIT)]
    share.put("ac", KEY, b"x", once=True)
    for look_up in lookups:
        for clock_error_s in (-7200, 7200, 365 * 86400, -365 * 86400):  # two hours, and a year
            os.utime(entry(tmp_path), (time.time() + clock_error_s,) * 2)
            look_up()
            assert abs(entry(tmp_path).stat().st_mtime - time.time()) < 60
        os.utime(entry(tmp_path), (time.time() - 600,) * 2)
        look_up()
        assert time.time() - entry(tmp_path).stat().st_mtime > 550, "a time that is ten minutes old is not updated"


def test_root_of_accepts_only_an_absolute_local_path() -> None:
    assert directory.root_of("file:///srv/a%20b/") == "/srv/a b"
    assert directory.root_of("file://localhost/srv/c") == "/srv/c"
    for url in ("file://host/srv", "file:srv", "file:///", "file:///srv?x=1", "file:////", "file:///a%00b"):
        with pytest.raises(ConfigurationError):
            directory.root_of(url)


# The program imports everything before it changes its user, because the interpreter's folder may be readable by root only.
USER_PROGRAM = """
import os, sys
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
umask, uid, gid, groups, root, name = sys.argv[1:]
os.umask(int(umask, 8))
if int(uid):
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(gid))
    os.setuid(int(uid))
share = DirectoryTransport(RemoteSettings("team", "file://" + root))
for kind in ("cas", "ac"):
    for first in "ab":
        key = first + "a" * 63
        share.get(kind, key, 99)
        share.put(kind, key, b"of all", once=True)
        assert share.get(kind, key, 99) == b"of all"
        assert share.has(kind, key)
        assert share.put(kind, key, b"of all", once=False)
    assert share.put(kind, name * 64, b"mine", once=True)
"""


def run_as(umask: str, root: Path, name: str, uid: int = 0, gid: int = 0, groups: str = "") -> None:
    """Run `USER_PROGRAM` as a user. The program uses four shared entries, and writes two entries named `name` * 64."""
    process = subprocess.run(
        [sys.executable, "-c", USER_PROGRAM, umask, str(uid), str(gid), groups, str(root), name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]


def modes(root: Path) -> tuple[set[int], set[int]]:
    """The modes of all directories below `root`, and the modes of all files."""
    paths = list(root.rglob("*"))
    return (
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()},
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()},
    )


@pytest.mark.parametrize(("root_mode", "file_mode"), [(0o2775, 0o664), (0o770, 0o660), (0o755, 0o644), (0o1777, 0o666)])
def test_files_have_the_roots_modes_with_any_umask(tmp_path: Path, root_mode: int, file_mode: int) -> None:
    root = tmp_path / "share"
    root.mkdir()
    root.chmod(root_mode)
    for umask in (0o022, 0o077, 0o000):
        before = os.umask(umask)
        try:
            remote(root).put("ac", f"{umask:02x}" * 32, b"x", once=True)
        finally:
            os.umask(before)
    assert modes(root) == ({root_mode}, {file_mode})


@as_root
@pytest.mark.parametrize("setgid", [True, False])
def test_users_with_different_umasks_share_a_directory_of_their_group(open_to_all: Path, setgid: bool) -> None:
    root = open_to_all / "share"
    root.mkdir()
    os.chown(root, 64001, 64100)
    root.chmod(0o2770 if setgid else 0o770)
    for name, umask, uid in (("1", "077", 64001), ("2", "022", 64002), ("3", "027", 64003)):
        run_as(umask, root, name, uid, uid, "64100")
    assert modes(root) == ({0o2770 if setgid else 0o770}, {0o660})
    assert {path.stat().st_gid for path in root.rglob("*")} == {64100}


@as_root
def test_a_user_without_write_access_can_read_but_not_write(open_to_all: Path) -> None:
    root = open_to_all / "share"
    root.mkdir()
    os.chown(root, 64001, 64001)
    root.chmod(0o755)
    run_as("077", root, "1", 64001, 64001)
    code = """
import os, sys
from trtbuild.errors import RemoteRefused
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
os.setgroups([]); os.setgid(64002); os.setuid(64002)
share = DirectoryTransport(RemoteSettings("team", "file://" + sys.argv[1]))
assert share.has("ac", "1" * 64) and share.get("ac", "1" * 64, 99) == b"mine"
try:
    share.put("ac", "2" * 64, b"x", once=True)
except RemoteRefused:
    print("refused")
"""
    # The entry is old, but the reader has no permission to update its time. This is not an error.
    os.utime(entry(root, name="1" * 64), (0, 0))
    process = subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.stdout == "refused\n", process.stderr[-2000:]
    assert entry(root, name="1" * 64).stat().st_mtime == 0


def test_simultaneous_first_writers_do_not_lose_entries(tmp_path: Path) -> None:
    """At first no directory exists. So a new directory of one writer can replace another writer's empty directory."""
    errors: list[Exception] = []
    for number in range(20):
        store = remote(tmp_path / f"shared{number}")
        barrier = threading.Barrier(8)

        def write(writer: int, store: DirectoryTransport = store, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                store.put("cas", f"{writer:02x}" * 32, b"x", once=True)
                store.put("ac", "ab" * 32, b"x", once=True)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert all(store.has("cas", f"{writer:02x}" * 32) for writer in range(8))
