"""Engines that compute with the programs of their partitions, in a comparison worker or in ``trtbuild verify``.

A file in the worker's directory changes the engines. ``spoil``: the results are wrong. ``die``: SIGKILL ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.verification import Point
from trtbuild.core.partition.partitions import Partition
from trtbuild.runtime.packages.package import Package
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import TorchReference, Weights
from trtbuild.store.local.local import LocalStore


class _HostMemory:
    """Host memory in place of a GPU's memory."""

    device = torch.device("cpu")

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        yield

    def stream(self) -> int:
        return 7  # any number: a host has no streams

    def synchronize(self, stream: int) -> None: ...


class OpenEngines:
    """Takes the place of `trtbuild.driver.gpu_comparisons.engines.OpenEngines`."""

    def __init__(self, package: Package, gpu: Any) -> None:
        self.memory = _HostMemory()
        index, target = package.index, package.index.targets[gpu.target]
        package.read(list(target.engines.values()))  # raises an error if a plan is missing or damaged
        is_worker = sys.argv[1:2] == ["comparison"]  # a worker's arguments are its kind, store and directory
        store_root, directory = sys.argv[2:] if is_worker else (os.environ["TRTBUILD_CACHE_DIR"], ".")
        self._directory = Path(directory)
        read = LocalStore(Path(store_root)).get_bytes
        programs = {graph: index.files[path].sha256 for graph, path in target.programs.items()}

        def weight(slot: int) -> Weight:
            packed = index.weights.get(slot)
            return (
                Weight("float32", (), "")  # no weight of this package has this slot
                if packed is None
                else Weight(packed.dtype, packed.shape, index.files[packed.path].sha256)
            )

        weights = Weights([weight(slot) for slot in range(max(index.weights, default=-1) + 1)], read)
        if all(path.endswith(".onnx") for path in target.programs.values()):
            onnxruntime = OnnxRuntime(lambda graph: read(programs[graph]), weights)
            self._run: Any = lambda part, values: onnxruntime(part, values, Point(0, "any", (), 0))
        else:
            self._run = TorchReference(programs, weights, read).run_part

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Any:
        def run(values: Sequence[Any], call: object) -> list[Any]:
            if (self._directory / "die").exists():
                print("about to die", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            factor = 1.1 if (self._directory / "spoil").exists() else 1.0
            return [value * factor for value in self._run(partition, values)]

        return run

    def __enter__(self) -> OpenEngines:
        return self

    def __exit__(self, *_: object) -> None: ...
