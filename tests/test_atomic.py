"""A killed writer, a full disk or two simultaneous writers leave a file with all old bytes or all new bytes."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.syscalls import traced
from trtbuild.atomic import replace_file, replacing, write_all

ROOT = Path(__file__).parents[1]
OLD, NEW = b"old" * 1000, b"new" * 100_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file").write_bytes(OLD)
    return tmp_path / "files" / "file"


def start_python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE)


def test_the_new_bytes_replace_the_old_bytes_and_no_other_file_remains(path: Path) -> None:
    replace_file(path, NEW)
    assert path.read_bytes() == NEW
    replace_file(str(path), memoryview(b""), durable=True)
    assert path.read_bytes() == b""
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "expected"), [(0o666, 0o640), (0o600, 0o600)])
def test_the_umask_reduces_the_mode(path: Path, mode: int, expected: int) -> None:
    before = os.umask(0o027)
    try:
        replace_file(path, NEW, mode=mode)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == expected


def test_a_link_is_replaced_and_not_followed(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    replace_file(link, NEW)
    assert not link.is_symlink()
    assert (link.read_bytes(), path.read_bytes()) == (NEW, OLD)


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127])
def test_a_name_can_be_as_long_as_the_file_system_allows(path: Path, name: str) -> None:
    replace_file(path.with_name(name), NEW)
    assert path.with_name(name).read_bytes() == NEW


def test_an_error_in_the_block_leaves_the_old_file(path: Path) -> None:
    with pytest.raises(KeyError), replacing(path) as descriptor:
        write_all(descriptor, NEW)
        raise KeyError
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def test_a_kill_in_the_middle_leaves_the_old_file(path: Path) -> None:
    killed = start_python(
        "import os, signal, sys\n"
        "from trtbuild.atomic import replacing\n"
        "with replacing(sys.argv[1]) as descriptor:\n"
        "    os.write(descriptor, b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
        path,
    )
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    (temporary,) = path.parent.glob(".file.*.tmp")
    assert temporary.read_bytes() == b"half", "the process was not killed between the first write and the rename"
    assert path.read_bytes() == OLD


def test_a_full_disk_leaves_the_old_file(path: Path) -> None:
    full = start_python(  # a limit on the size of files stops a write in its middle, like a full disk
        "import resource, sys\n"
        "from trtbuild.atomic import replace_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    replace_file(sys.argv[1], bytes(10_000))\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n",
        path,
    )
    assert full.communicate()[0] == b"File too large\n"
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def test_after_two_simultaneous_writers_the_file_has_all_bytes_of_one_writer(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from trtbuild.atomic import replace_file\n"
        "while not os.path.exists(sys.argv[3]):\n"
        "    replace_file(sys.argv[1], sys.argv[2].encode() * 50_000)\n"
    )
    stop = path.with_name("stop")
    writers = [start_python(code, path, letter, stop) for letter in "ab"]
    seen: list[bytes] = [OLD]
    while len(seen) < 100 or len(set(seen)) < 3:  # at least 99 reads, among them the bytes of both writers
        seen.append(path.read_bytes())
    stop.touch()
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    assert set(seen) == {OLD, b"a" * 50_000, b"b" * 50_000}
    assert sorted(path.parent.iterdir()) == [path, stop]


def _replace_durably(folder: Path) -> None:
    replace_file(folder / "file", NEW, durable=True)


def _replace(folder: Path) -> None:
    replace_file(folder / "file", NEW)


def test_a_durable_file_is_synced_before_its_rename_and_its_folder_is_synced_after_it(path: Path) -> None:
    calls = [call.name for call in traced(_replace_durably, path.parent).calls]
    assert [name for name in calls if name in ("fsync", "rename")] == ["fsync", "rename", "fsync"]
    assert "fsync" not in [call.name for call in traced(_replace, path.parent).calls]


def test_a_file_that_cannot_be_synced_leaves_the_old_file(path: Path) -> None:
    outcome = traced(_replace_durably, path.parent, "fsync:error=EIO:when=1")
    assert outcome.tampered and outcome.report["error"] == "OSError"
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def test_a_named_pipe_in_place_of_the_lock_file_is_an_error_without_waiting(path: Path) -> None:
    os.mkfifo(path.with_suffix(".lock"))
    program = f"import pathlib, trtbuild.atomic as a; a.lock_beside(pathlib.Path({str(path)!r})).__enter__()"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert process.returncode == 1
    assert "OSError: [Errno 6]" in process.stderr


#: Path of a module that calls `os.rename`, `os.replace` or `tempfile.mkstemp` → why it does not use `trtbuild.atomic`.
OWN_RENAMES = {
    "atomic.py": "it is `trtbuild.atomic`",
    "store/collection/condemned.py": "it hides entries of a shared directory, and puts them back",
    "store/transports/shared_folder.py": "it renames relative to descriptors, and uses the mode of the root directory",
    "store/local/entries.py": "it moves entries into quarantine",
    "store/local/layout.py": "it writes through the store's tmp/, and uses the mode of the root directory",
    "toolchain/libraries/plugins.py": "it writes a private copy of a library, and removes the copy after loading it",
    "store/local/publication.py": "it writes many files into the store's tmp/, and syncs them together",
}


def test_files_are_renamed_by_the_listed_modules_only() -> None:
    found = set()
    for module in (ROOT / "trtbuild").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.rename", "os.replace", "tempfile.mkstemp"):
                found.add(str(module.relative_to(ROOT / "trtbuild")))
    assert found == set(OWN_RENAMES)
