"""A fault of the disk, while a store writes, reads a source file or copies a blob, leaves no incomplete files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.record import Record
from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection.check import verify
from trtbuild.store.local.local import LocalStore

MIB = 1 << 20


class Fault:
    """Lets the first `passing_calls` calls of an `os` function succeed. Later calls fail and are counted in `delivered`.

    A ``write`` that fails has written half of its bytes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str, error_number: int, passing_calls: int) -> None:
        self.delivered = 0
        real_call = getattr(os, function)

        def faulty(*arguments: object) -> object:
            nonlocal passing_calls
            if passing_calls:
                passing_calls -= 1
                return real_call(*arguments)
            if function == "write":
                descriptor, view = arguments
                real_call(descriptor, view[: len(view) // 2])  # type: ignore[index]
            self.delivered += 1
            raise OSError(error_number, os.strerror(error_number))

        monkeypatch.setattr(os, function, faulty)


@pytest.mark.parametrize("function", ["write", "fsync", "rename"])
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("passing_calls", [0, 2])
def test_reports_a_fault_while_publishing_a_blob(
    local: LocalStore,
    payload: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    error_number: int,
    passing_calls: int,
) -> None:
    local.put_bytes(b"before")
    data = payload(1, 2 * MIB)
    with monkeypatch.context() as patch:
        fault = Fault(patch, function, error_number, passing_calls)
        with pytest.raises(StoreUnavailable) as caught:
            local.put_bytes(data)
        assert fault.delivered >= 1
    assert caught.value.hint and caught.value.file == str(local.root)
    assert list((local.root / "tmp").iterdir()) == []
    assert verify(local).damage == ()
    output = local.put_bytes(data)
    assert local.get_bytes(output.sha256) == data


@pytest.mark.parametrize("passing_calls", range(6))
def test_reports_a_fault_while_publishing_a_record(
    local: LocalStore, record_of: Callable[..., Record], monkeypatch: pytest.MonkeyPatch, passing_calls: int
) -> None:
    record = record_of(1, plan=local.put_bytes(b"plan"))
    with monkeypatch.context() as patch:
        fault = Fault(patch, "fsync", errno.ENOSPC, passing_calls)
        with pytest.raises(StoreUnavailable):
            local.put_record(record)
    assert fault.delivered
    assert verify(local).damage == ()
    assert local.put_record(record) == record


LIMITED_PROGRAM = """
import resource, signal, sys
from trtbuild.errors import StoreUnavailable
from trtbuild.store.local.local import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LocalStore(sys.argv[1])
store.put_bytes(b"small")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put_bytes(bytes(5 << 20))
except StoreUnavailable as error:
    print(error.__cause__.errno, error.hint)
"""


def test_reports_a_file_size_limit_of_the_kernel(child: Callable[..., Any], tmp_path: Path) -> None:
    output = child(LIMITED_PROGRAM, tmp_path / "store").finish()
    assert output.startswith(f"{errno.EFBIG} ") and "ulimit -f" in output
    store = LocalStore(tmp_path / "store")
    assert list((store.root / "tmp").iterdir()) == []
    assert len(list(store.root.glob("cas/*/*"))) == 1
    assert verify(store).damage == ()


def test_an_unreadable_source_raises_its_own_error(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtbuild.store.local import chunking

    (tmp_path / "in").write_bytes(bytes(40 * MIB))

    class Failing:
        def readinto(self, buffer: memoryview) -> int:
            raise OSError(errno.EIO, "the disk of the source")

    windows_of_file = chunking.windows_of_file
    monkeypatch.setattr(
        "trtbuild.store.local.blobs.windows_of_file", lambda head, rest: windows_of_file(head, Failing())
    )  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the disk of the source"):
        local.put_file(str(tmp_path / "in"))
    assert not local.root.exists()


def test_copy_to_a_full_disk_raises_and_leaves_no_file(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = local.put_bytes(bytes(5 * MIB))
    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        fault = Fault(patch, "write", errno.ENOSPC, passing_calls=1)
        with pytest.raises(OSError) as caught:
            local.copy_to(output.sha256, str(tmp_path / "out" / "plan"))
        assert fault.delivered and caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "out").iterdir()) == []
