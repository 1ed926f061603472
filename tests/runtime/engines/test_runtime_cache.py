"""The kernel file, with the kernels that TensorRT-RTX compiled: its path and its permissions. Damage causes no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild.runtime.engines.runtime_cache import MAGIC, Gpu, KernelFile, kernel_file_paths

H200 = Gpu("NVIDIA H200", 90, 13000)


def test_another_gpu_driver_or_library_has_another_file(tmp_path: Path) -> None:
    paths = {
        kernel_file_paths(tmp_path, "d", *arguments)[0]
        for arguments in (
            ("tensorrt-rtx", "1.7.1", H200),
            ("tensorrt-rtx", "1.8.0", H200),
            ("tensorrt-rtx", "1.7.1", Gpu("NVIDIA H200", 90, 12080)),
            ("tensorrt-rtx", "1.7.1", Gpu("NVIDIA L4", 89, 13000)),
        )
    }
    assert len(paths) == 4
    assert tmp_path / ".runtime/tensorrt-rtx-1.7.1/NVIDIA-H200-sm90-driver13000.kernels" in paths


def test_a_written_kernel_file_is_read(tmp_path: Path) -> None:
    file = KernelFile([tmp_path / "a" / "kernels"])
    assert file.read() is None
    assert file.write(b"kernels\nof\n") == tmp_path / "a" / "kernels"
    assert file.read() == b"kernels\nof\n"
    assert file.write(b"more") is not None and file.read() == b"more"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kernels"]


@pytest.mark.parametrize("length", [0, 5, len(MAGIC) + 10, -1])
def test_a_damaged_kernel_file_is_not_used(tmp_path: Path, length: int) -> None:
    path = tmp_path / "kernels"
    file = KernelFile([path])
    file.write(b"kernels" * 100)
    path.write_bytes(path.read_bytes()[:length])
    assert file.read() is None


def test_an_altered_kernel_file_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    file = KernelFile([path])
    file.write(b"kernels")
    data = path.read_bytes()
    assert data.endswith(b"kernels")
    path.write_bytes(data[:-1] + b"z")
    assert file.read() is None


def test_a_kernel_file_that_other_users_may_write_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    file = KernelFile([path])
    file.write(b"kernels")
    path.chmod(0o664)
    assert file.read() is None
    path.chmod(0o644)
    assert file.read() == b"kernels"


def test_skips_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    file = KernelFile([tmp_path / "file" / "kernels", tmp_path / "user" / "kernels"])
    assert file.write(b"kernels") == tmp_path / "user" / "kernels"
    assert file.read() == b"kernels"


def test_a_kernel_file_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert KernelFile([tmp_path / "file" / "kernels"]).write(b"kernels") is None


def test_the_second_path_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, second = kernel_file_paths(tmp_path / "package", "0123456789abcdef" * 4, "tensorrt-rtx", "1.7.1", H200)
    assert second.is_relative_to(tmp_path / "cache" / "trtbuild" / "runtime" / ("0123456789abcdef" * 2))


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has the module pwd")
def test_without_a_home_the_only_path_is_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a container may run with a user ID that is not in /etc/passwd."""
    import pwd

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(RuntimeError):
        Path.home()
    (only,) = kernel_file_paths(tmp_path, "0" * 64, "tensorrt-rtx", "1.7.1", H200)
    assert only.is_relative_to(tmp_path)
