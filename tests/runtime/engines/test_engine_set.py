"""The engines of a package share their activation memory on each stream, and a cache of compiled kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.fake_tensorrt.samples import WIDTH
from tests.runtime.rigs import Rig, partition
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.errors import EngineError
from trtbuild.runtime.calls.stitching import StitchedParts
from trtbuild.runtime.engines.engine_set import EngineSet
from trtbuild.runtime.engines.runtime_cache import KernelFile


class Kernels:
    """A kernel cache that rejects data that does not begin with ``good``."""

    def __init__(self) -> None:
        self.content = b""
        self.loaded: list[bytes] = []

    def load(self, data: bytes) -> bool:
        self.loaded.append(data)
        if not data.startswith(b"good"):
            return False
        self.content = data
        return True

    def save(self) -> bytes:
        return self.content


def _compile_at_run_time(rig: Rig) -> list[Kernels]:
    """Let the rig's engines create kernel caches, as in TensorRT-RTX. Return a list, to which each new cache is added."""
    caches: list[Kernels] = []
    load = rig.library.load_engine

    def load_engine(plan: Any) -> Any:
        engine = load(plan)

        def create() -> Kernels:
            caches.append(Kernels())
            return caches[-1]

        engine.create_kernel_cache = create  # type: ignore[method-assign]
        return engine

    rig.library.load_engine = load_engine  # type: ignore[method-assign]
    return caches


def _wide_partition(name: str, source: str) -> Partition:
    whole = partition("wide")
    return dataclasses.replace(whole, name=name, inputs=((source, whole.inputs[0][1]),))


def test_engines_pass_values_on_and_share_one_workspace(rig: Rig) -> None:
    partitions = Partitions(
        (_wide_partition("p0", "input:0"), _wide_partition("p1", "p0:0"), _wide_partition("p2", "p1:0")),
        ("p2:0", "p0:0"),
    )
    engines = EngineSet(rig.library, rig.memory)
    for part in partitions.partitions:
        engines.load(part, memoryview(rig.trt.plan("wide")))
    stitched = StitchedParts(partitions, {part.name: engines.part(part) for part in partitions.partitions}, {}, 1)
    stream = rig.stream()
    for rows in (2, 5, 2):
        value, data = rig.values(rows, WIDTH, stream=stream)
        last, first = stitched([value], rig.call(rows, stream=stream))
        np.testing.assert_array_equal(last.numpy(), data * 0.125**3)
        np.testing.assert_array_equal(first.numpy(), data * 0.125)
    assert len({address for address, *_ in rig.gpu.workspaces}) == 1
    engines.close()
    assert rig.trt.contexts_alive == 0


def test_all_engines_share_one_kernel_cache_which_is_saved(rig: Rig, tmp_path: Path) -> None:
    caches, file = _compile_at_run_time(rig), KernelFile([tmp_path / "kernels"])
    engines = EngineSet(rig.library, rig.memory, file)
    for name in ("p0", "p1"):
        engines.load(_wide_partition(name, "input:0"), memoryview(rig.trt.plan("wide")))
    assert len(caches) == 1 and caches[0].loaded == []
    caches[0].content = b"good kernels"
    engines.store_kernels()
    assert file.read() == b"good kernels"
    second = EngineSet(rig.library, rig.memory, file)
    second.load(_wide_partition("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    assert caches[1].loaded == [b"good kernels"]
    before = (tmp_path / "kernels").stat().st_mtime_ns
    second.close()
    assert (tmp_path / "kernels").stat().st_mtime_ns == before  # no kernel was added


def test_replaces_kernels_that_the_library_rejects(rig: Rig, tmp_path: Path) -> None:
    caches, file = _compile_at_run_time(rig), KernelFile([tmp_path / "kernels"])
    file.write(b"of another driver")
    engines = EngineSet(rig.library, rig.memory, file)
    engines.load(_wide_partition("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    assert caches[0].loaded == [b"of another driver"]
    caches[0].content = b"good, new"
    engines.close()
    assert file.read() == b"good, new"


def test_writes_no_file_if_the_library_compiles_no_kernels(rig: Rig, tmp_path: Path) -> None:
    engines = EngineSet(rig.library, rig.memory, KernelFile([tmp_path / "kernels"]))
    engines.load(_wide_partition("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    engines.store_kernels()
    engines.close()
    assert not (tmp_path / "kernels").exists()


def test_frees_the_contexts_even_if_the_kernels_cannot_be_saved(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = _compile_at_run_time(rig)
    engines = EngineSet(rig.library, rig.memory, KernelFile([tmp_path / "kernels"]))
    whole = _wide_partition("p0", "input:0")
    engines.load(whole, memoryview(rig.trt.plan("wide")))
    stream = rig.stream()
    value, _ = rig.values(2, WIDTH, stream=stream)
    engines.part(whole)([value], rig.call(2, stream=stream))
    assert rig.trt.contexts_alive == 1

    def fail() -> bytes:
        raise EngineError("the device is lost")

    monkeypatch.setattr(caches[0], "save", fail)
    with pytest.raises(EngineError, match="the device is lost"):
        engines.close()
    assert rig.trt.contexts_alive == 0
