"""All engines of a package on one GPU: stitched on one stream, and the kernels that their library compiles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.fake_tensorrt.samples import WIDTH
from tests.runtime.rigs import Rig, partition
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.runtime.calls.stitching import Stitched
from trtbuild.runtime.engines.engine_set import EngineSet
from trtbuild.runtime.engines.runtime_cache import KernelFile


class Kernels:
    """A kernel cache that refuses what does not begin with ``good``."""

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


def _compiling(rig: Rig) -> list[Kernels]:
    """Let the rig's library compile kernels at run time; the caches that are made."""
    made: list[Kernels] = []
    load = rig.library.load_engine

    def load_engine(plan: Any) -> Any:
        engine = load(plan)

        def create() -> Kernels:
            made.append(Kernels())
            return made[-1]

        engine.create_kernel_cache = create  # type: ignore[method-assign]
        return engine

    rig.library.load_engine = load_engine  # type: ignore[method-assign]
    return made


def _named(name: str, source: str) -> Partition:
    whole = partition("wide")
    return dataclasses.replace(whole, name=name, inputs=((source, whole.inputs[0][1]),))


def test_engines_hand_values_on_and_compute_in_one_block_of_memory(rig: Rig) -> None:
    cut = Partitions((_named("p0", "input:0"), _named("p1", "p0:0"), _named("p2", "p1:0")), ("p2:0", "p0:0"))
    engines = EngineSet(rig.library, rig.memory)
    for part in cut.partitions:
        engines.load(part, memoryview(rig.trt.plan("wide")))
    stitched = Stitched(cut, {part.name: engines.part(part) for part in cut.partitions}, {}, 1)
    stream = rig.stream()
    for rows in (2, 5, 2):
        value, data = rig.values(rows, WIDTH, stream=stream)
        last, first = stitched([value], rig.call(rows, stream=stream))
        np.testing.assert_array_equal(last.numpy(), data * 0.125**3)
        np.testing.assert_array_equal(first.numpy(), data * 0.125)
    assert len({address for address, *_ in rig.gpu.workspaces}) == 1
    engines.close()
    assert rig.trt.contexts_alive == 0


def test_one_cache_of_kernels_is_for_all_engines_and_is_kept(rig: Rig, tmp_path: Path) -> None:
    made, file = _compiling(rig), KernelFile([tmp_path / "kernels"])
    engines = EngineSet(rig.library, rig.memory, file)
    for name in ("p0", "p1"):
        engines.load(_named(name, "input:0"), memoryview(rig.trt.plan("wide")))
    assert len(made) == 1 and made[0].loaded == []
    made[0].content = b"good kernels"
    engines.warmed()
    assert file.read() == b"good kernels"
    again = EngineSet(rig.library, rig.memory, file)
    again.load(_named("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    assert made[1].loaded == [b"good kernels"]
    before = (tmp_path / "kernels").stat().st_mtime_ns
    again.close()
    assert (tmp_path / "kernels").stat().st_mtime_ns == before  # nothing came on


def test_kernels_that_the_library_refuses_are_replaced(rig: Rig, tmp_path: Path) -> None:
    made, file = _compiling(rig), KernelFile([tmp_path / "kernels"])
    file.write(b"of another driver")
    engines = EngineSet(rig.library, rig.memory, file)
    engines.load(_named("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    assert made[0].loaded == [b"of another driver"]
    made[0].content = b"good, new"
    engines.close()
    assert file.read() == b"good, new"


def test_a_library_that_compiles_nothing_keeps_nothing(rig: Rig, tmp_path: Path) -> None:
    engines = EngineSet(rig.library, rig.memory, KernelFile([tmp_path / "kernels"]))
    engines.load(_named("p0", "input:0"), memoryview(rig.trt.plan("wide")))
    engines.warmed()
    engines.close()
    assert not (tmp_path / "kernels").exists()
