"""Timing caches are stored, combined, and ignored if they are damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trtbuild.toolchain.compiling import timing_cache


class FakeCache:
    """An ITimingCache with the timings of one device. Its serialized form is ``device|kernel,kernel``."""

    def __init__(self, data: bytes) -> None:
        device, _, entries = data.partition(b"|")
        self.device = device or b"H200"
        self.entries = set(entries.split(b",")) - {b""}

    def combine(self, other: FakeCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if other.device != self.device:
            return False
        self.entries |= other.entries
        return True

    def serialize(self) -> bytes:
        return self.device + b"|" + b",".join(sorted(self.entries))


class FakeConfig:
    """An IBuilderConfig on an H200."""

    def __init__(self) -> None:
        self.cache: FakeCache | None = None

    def create_timing_cache(self, data: bytes) -> FakeCache | None:
        return None if data == b"not TensorRT's" else FakeCache(data)

    def set_timing_cache(self, cache: FakeCache, ignore_mismatch: bool) -> bool:
        if cache.device == b"H200" or ignore_mismatch:
            self.cache = cache
            return True
        return False

    def get_timing_cache(self) -> FakeCache | None:
        return self.cache


def build(path: Path, *kernels: bytes) -> set[bytes]:
    """Simulate a build that needs the timings of `kernels`. Returns the kernels whose timings were known before."""
    config = FakeConfig()
    cache = timing_cache.attach_cache(config, path)
    known_kernels = set(cache.entries)
    cache.entries.update(kernels)
    timing_cache.save_cache(config, path)
    return known_kernels


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return timing_cache.cache_path(tmp_path / "timing", "tensorrt", "8.6.0", "NVIDIA H200", "580.159.04")


def test_each_version_device_and_driver_has_its_own_file(tmp_path: Path) -> None:
    paths = {
        timing_cache.cache_path(tmp_path, *arguments)
        for arguments in (
            ("tensorrt", "8.6.0", "NVIDIA H200", "580.1"),
            ("tensorrt", "8.6.1", "NVIDIA H200", "580.1"),
            ("tensorrt", "8.6.0", "NVIDIA H100", "580.1"),
            ("tensorrt", "8.6.0", "NVIDIA H200", "590.1"),
        )
    }
    assert len(paths) == 4 and all(path.parent == tmp_path for path in paths)
    assert timing_cache.cache_path(tmp_path, "tensorrt", "1", "../../x", "1").parent == tmp_path


def test_later_builds_use_the_timings_of_earlier_ones(path: Path) -> None:
    assert build(path, b"a", b"b") == set()
    assert build(path, b"c") == {b"a", b"b"}
    assert build(path) == {b"a", b"b", b"c"}


def test_parallel_builds_store_the_timings_of_both(path: Path) -> None:
    first, second = FakeConfig(), FakeConfig()
    for config, kernel in ((first, b"a"), (second, b"b")):
        timing_cache.attach_cache(config, path).entries.add(kernel)
    timing_cache.save_cache(first, path)
    timing_cache.save_cache(second, path)
    assert build(path) == {b"a", b"b"}


@pytest.mark.parametrize("damage", ["empty", "no header", "wrong last byte"])
def test_a_damaged_file_counts_as_missing_and_is_replaced(path: Path, damage: str) -> None:
    build(path, b"a")
    intact = path.read_bytes()
    path.write_bytes({"empty": b"", "no header": b"rubbish", "wrong last byte": intact[:-1] + b"x"}[damage])
    assert timing_cache.read_cache(path) == b""
    assert build(path, b"a") == set()
    assert path.read_bytes() == intact


def test_a_timing_cache_that_tensorrt_refuses_is_replaced(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for body in (b"not TensorRT's", b"H100|a"):
        path.write_bytes(timing_cache._HEADER + hashlib.sha256(body).digest() + body)
        assert timing_cache.read_cache(path) == body
        assert build(path, b"b") == set()
        assert build(path) == {b"b"}
        path.unlink()


def test_an_unwritable_timing_cache_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "timing").write_text("a file in the place of the folder")
    assert build(tmp_path / "timing" / "x.cache", b"a") == set()
